"""Parts that let vecrl's classes be used by other libraries, its *peers*. vecrl depends on none of them.

This package never imports a peer by itself: what it does about a peer happens when a program has imported that peer.
"""
