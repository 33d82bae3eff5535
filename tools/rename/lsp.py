"""A thin client of pyright's language server: references of a definition over the whole tree."""
import json, subprocess, threading, queue, itertools, os
from pathlib import Path

class Pyright:
    def __init__(self, root, server):
        self.root = Path(root)
        self.p = subprocess.Popen(["node", "--max-old-space-size=6000", server, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.ids = itertools.count(1); self.replies = {}; self.cv = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self.call("initialize", {"processId": os.getpid(), "rootUri": self.root.as_uri(), "capabilities": {"workspace": {"configuration": True, "workspaceFolders": True}, "textDocument": {"references": {}, "rename": {}}},
            "workspaceFolders": [{"uri": self.root.as_uri(), "name": "w"}]})
        self.send({"jsonrpc": "2.0", "method": "initialized", "params": {}})
    def send(self, m):
        b = json.dumps(m).encode()
        self.p.stdin.write(b"Content-Length: %d\r\n\r\n" % len(b) + b); self.p.stdin.flush()
    def _read(self):
        f = self.p.stdout
        while True:
            n = 0
            while True:
                line = f.readline()
                if not line: return
                line = line.strip()
                if not line: break
                if line.lower().startswith(b"content-length"): n = int(line.split(b":")[1])
            m = json.loads(f.read(n))
            if "method" in m and "id" in m:
                r = None
                if m["method"] == "workspace/configuration":
                    r = [{"diagnosticMode": "openFilesOnly", "indexing": False} if "analysis" in (i.get("section") or "") else {} for i in m["params"]["items"]]
                self.send({"jsonrpc": "2.0", "id": m["id"], "result": r})
            elif "id" in m:
                with self.cv: self.replies[m["id"]] = m; self.cv.notify_all()
    def call(self, method, params):
        i = next(self.ids)
        self.send({"jsonrpc": "2.0", "id": i, "method": method, "params": params})
        with self.cv:
            while i not in self.replies: self.cv.wait()
            m = self.replies.pop(i)
        if "error" in m: raise RuntimeError(m["error"])
        return m["result"]
    def open(self, path):
        p = self.root / path
        self.send({"jsonrpc": "2.0", "method": "textDocument/didOpen", "params": {"textDocument": {"uri": p.as_uri(), "languageId": "python", "version": 1, "text": p.read_text()}}})
    def references(self, path, line, col):
        return self.call("textDocument/references", {"textDocument": {"uri": (self.root / path).as_uri()}, "position": {"line": line, "character": col}, "context": {"includeDeclaration": True}})
    def warm_up(self, path, line, col):
        """Asks until the server has read its configuration: before, it answers that there is nothing."""
        import time
        for _ in range(60):
            if self.references(path, line, col): return
            time.sleep(0.5)
    def close(self):
        self.call("shutdown", None); self.send({"jsonrpc": "2.0", "method": "exit", "params": {}}); self.p.wait(10)
