"""The worker on another Python interpreter. It runs there without the rest of vecrl, so it imports only itself."""
