#!/usr/bin/env python3
"""Renames modules and identifiers of vecrl, from the mapping files beside this script.

    python rename.py <checkout> [--names-only] [--keep-scratch]

Steps: (1) names, on the tree as it is: tokens by scope, and by pyright's references wherever a definition is seen outside of
its file; (2) moves of files (`git mv`), imports, dotted names and paths in text; (3) exact replacements (patches.py);
(4) ruff; (5) lines that became too long. Every mapping entry that finds nothing is a warning, and so is every clash.

Mapping of names (names/*.txt): sections `[glob ...]` or `[glob::Qual]` (paths of the old tree; Qual is a dotted name with
wildcards: what lies in that class or function), and lines `old new`:

    old new      variables, parameters, functions, classes (not after a dot, not members of classes)
    .old new     what stands after a dot, and members of classes
    =old new     keywords in calls alone
    ~old new     all three
    "old" new    string literals that are this text exactly

`[*]` is the whole tree, without asking pyright: for names that mean one thing wherever they stand.
"""
from __future__ import annotations

import ast, builtins, collections, fnmatch, os, re, shutil, subprocess, sys, time
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE / "venv" / "bin" / "python"
if Path(sys.prefix) != HERE / "venv":
    os.execv(VENV, [str(VENV), __file__, *sys.argv[1:]])
sys.path.insert(0, str(HERE))
import parso
from lsp import Pyright

warnings: list[str] = []
def warn(text: str) -> None:
    warnings.append(text)

# ---------------------------------------------------------------- tokens
class Token:
    __slots__ = ("file", "line", "col", "name", "cls", "qual", "kind", "of_module")
    def __init__(self, file, leaf, cls, qual, kind):
        self.file, self.line, self.col, self.name, self.cls, self.qual, self.kind = file, leaf.line, leaf.column, leaf.value, cls, qual, kind
        self.of_module = False
    @property
    def key(self): return self.file, self.line, self.col

def qual_of(leaf):
    parts, node, below = [], leaf.parent, leaf
    while node is not None:
        if node.type in ("funcdef", "classdef"):
            # the name, the decorators and the bases lie outside; parameters inside
            if below is not node.children[1] and (node.type == "funcdef" or below.type == "suite" or below is node.children[-1]):
                parts.append((node.children[1].value, node.type))
        below, node = node, node.parent
    return list(reversed(parts))

def class_fields(tree):
    """For each classdef node: names that its body binds."""

def classify(leaf):
    p = leaf.parent
    q = qual_of(leaf)
    inclass = bool(q) and q[-1][1] == "classdef"
    dotted = ".".join(n for n, _ in q)
    prev = leaf.get_previous_leaf()
    if p.type in ("funcdef", "classdef") and p.children[1] is leaf:
        return ("A" if inclass else "N"), dotted, ("method" if inclass and p.type == "funcdef" else "def")
    if p.type == "trailer" and p.children[0].value == "." and p.children[1] is leaf:
        # self.x = ...
        kind = "ref"
        e = p.parent
        if e.type in ("atom_expr", "power") and e.children[-1] is p and leaf.is_definition():
            kind = "attr"
        return "A", dotted, kind
    if p.type == "argument" and p.children[0] is leaf and len(p.children) > 1 and p.children[1].value == "=" if hasattr(p.children[1] if len(p.children) > 1 else None, "value") else False:
        return "K", dotted, "ref"
    if p.type in ("dotted_name",):
        return ("D", dotted, "ref")  # import a.b, @a.b: see below
    if prev is not None and prev.type == "operator" and prev.value == ".":
        return "A", dotted, "ref"
    if (p.type == "param" and p.name is leaf) or (p.type == "tfpdef" and p.children[0] is leaf):
        return "N", dotted, "param"
    if p.type in ("import_from", "import_as_name", "import_as_names"):
        imp = leaf
        while imp.type != "import_from" and imp.parent is not None: imp = imp.parent
        return "N", dotted, "import"
    if leaf.is_definition():
        return ("A" if inclass else "N"), dotted, ("field" if inclass else "const" if not q else "local")
    return "N", dotted, "ref"

def in_import_path(leaf):
    n = leaf
    while n.parent is not None and n.parent.type not in ("import_from", "import_name"):
        n = n.parent
    imp = n.parent
    if imp is None: return False
    if imp.type == "import_name": return True
    # import_from: what precedes `import`
    for c in imp.children:
        if getattr(c, "value", None) == "import": return False
        if c is n: return True
    return False

def tokens_of(file, text):
    out, strings = [], []
    tree = parso.parse(text)
    leaf = tree.get_first_leaf()
    while leaf is not None:
        if leaf.type == "name":
            if in_import_path(leaf):
                pass
            else:
                cls, q, kind = classify(leaf)
                if cls == "D":  # decorator a.b
                    prev = leaf.get_previous_leaf()
                    cls = "A" if prev.value == "." else "N"
                out.append(Token(file, leaf, cls, q, kind))
                before = leaf.get_previous_leaf()
                if cls == "A" and before is not None and before.value == ".":
                    out[-1].of_module = before.get_previous_leaf().value  # resolved below
        elif leaf.type == "string":
            strings.append(leaf)
        leaf = leaf.get_next_leaf()
    modules = {n.get_defined_names()[0].value for n in tree.iter_imports() if n.type == "import_name"}
    for t in out:
        t.of_module = t.of_module in modules
    # names in a class body that the body defines are fields
    fields = {(t.qual, t.name) for t in out if t.cls == "A" and t.kind in ("field", "method")}
    classes = {(t.qual + "." + t.name).lstrip(".") for t in out if t.kind == "def" and t.cls in "NA"}
    for t in out:
        if t.cls == "N" and t.kind == "ref" and (t.qual, t.name) in fields and t.qual:
            t.cls = "A"
    return tree, out, strings

# ---------------------------------------------------------------- scopes (for the check that no binding changed)
class Scope:
    def __init__(self, kind, parent): self.kind, self.parent, self.bound, self.glob, self.nonl = kind, parent, set(), set(), set()

class Bindings(ast.NodeVisitor):
    def __init__(self, text):
        self.uses = []; self.scope = self.module = Scope("module", None); self.visit(ast.parse(text))
    def bind(self, name, scope=None):
        s = scope or self.scope; s.bound.add(name); self.uses.append((s, name))
    def args(self, a):
        for x in a.posonlyargs + a.args + a.kwonlyargs + [y for y in (a.vararg, a.kwarg) if y]: self.bind(x.arg)
    def outer(self, a):
        for d in a.defaults + [k for k in a.kw_defaults if k]: self.visit(d)
        for x in a.posonlyargs + a.args + a.kwonlyargs + [y for y in (a.vararg, a.kwarg) if y]:
            if x.annotation: self.visit(x.annotation)
    def visit_FunctionDef(self, n):
        self.bind(n.name)
        for d in n.decorator_list: self.visit(d)
        self.outer(n.args)
        if n.returns: self.visit(n.returns)
        self.scope = Scope("func", self.scope); self.args(n.args)
        for b in n.body: self.visit(b)
        self.scope = self.scope.parent
    visit_AsyncFunctionDef = visit_FunctionDef
    def visit_Lambda(self, n):
        self.outer(n.args); self.scope = Scope("func", self.scope); self.args(n.args); self.visit(n.body); self.scope = self.scope.parent
    def visit_ClassDef(self, n):
        self.bind(n.name)
        for d in n.decorator_list + n.bases + [k.value for k in n.keywords]: self.visit(d)
        self.scope = Scope("class", self.scope)
        for b in n.body: self.visit(b)
        self.scope = self.scope.parent
    def comp(self, n):
        self.visit(n.generators[0].iter); self.scope = Scope("comp", self.scope)
        for i, g in enumerate(n.generators):
            if i: self.visit(g.iter)
            self.visit(g.target)
            for c in g.ifs: self.visit(c)
        for f in ("key", "value", "elt"):
            if hasattr(n, f): self.visit(getattr(n, f))
        self.scope = self.scope.parent
    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = comp
    def visit_Name(self, n):
        if isinstance(n.ctx, (ast.Store, ast.Del)): self.bind(n.id)
        else: self.uses.append((self.scope, n.id))
    def visit_NamedExpr(self, n):
        s = self.scope
        while s.kind == "comp": s = s.parent
        self.bind(n.target.id, s); self.visit(n.value)
    def visit_Global(self, n): self.scope.glob |= set(n.names)
    def visit_Nonlocal(self, n): self.scope.nonl |= set(n.names)
    def visit_ExceptHandler(self, n):
        if n.type: self.visit(n.type)
        if n.name: self.bind(n.name)
        for b in n.body: self.visit(b)
    def visit_MatchAs(self, n):
        if n.pattern: self.visit(n.pattern)
        if n.name: self.bind(n.name)
    def visit_MatchStar(self, n):
        if n.name: self.bind(n.name)
    def visit_MatchMapping(self, n):
        self.generic_visit(n)
        if n.rest: self.bind(n.rest)
    def visit_Import(self, n):
        for a in n.names: self.bind(a.asname or a.name.split(".")[0])
    def visit_ImportFrom(self, n):
        for a in n.names:
            if a.name != "*": self.bind(a.asname or a.name)
    def resolved(self):
        ids = {}
        for s, name in self.uses:
            t = s
            if name in s.glob: t = self.module
            else:
                if name in s.nonl: t = s.parent
                while t is not None and (name not in t.bound or (t.kind == "class" and t is not s)): t = t.parent
            yield (id(t) if t else "builtin", name)

def check_bindings(file, before, after):
    a, b = list(Bindings(before).resolved()), list(Bindings(after).resolved())
    if len(a) != len(b):
        warn(f"{file}: the number of names changed ({len(a)} -> {len(b)})"); return
    there, back = {}, {}
    for x, y in zip(a, b):
        if there.setdefault(x, y) != y:
            warn(f"SPLIT {file}: `{x[1]}` becomes both `{there[x][1]}` and `{y[1]}` (one binding)")
        if back.setdefault(y, x) != x:
            warn(f"MERGE {file}: `{back[y][1]}` and `{x[1]}` both become `{y[1]}`")
    for x, y in there.items():
        if x[0] == "builtin" and x[1] != y[1]: warn(f"UNBOUND {file}: `{x[1]}` -> `{y[1]}` is bound nowhere")
        if x[0] != "builtin" and y[1] != x[1] and y[1] in vars(builtins): warn(f"BUILTIN {file}: `{x[1]}` -> `{y[1]}` shadows a builtin")

# ---------------------------------------------------------------- mapping
class Entry:
    def __init__(self, scope, sigil, old, new, where):
        self.scope, self.sigil, self.old, self.new, self.where, self.hits = scope, sigil, old, new, where, 0
        self.globs, _, self.qual = scope.partition("::")
        self.globs = self.globs.split()
        self.everywhere = scope == "*"
        self.priority = 0 if self.everywhere else 3 + self.qual.count(".") if self.qual else 1 + ("*" not in scope)
        self.classes = {"": "N", ".": "A", "=": "K", "~": "NAK", "?": "N", '"': "S"}[sigil]
        self.optional = sigil == "?"
    def file_fits(self, file): return self.everywhere or any(fnmatch.fnmatch(file, g) for g in self.globs)
    def qual_fits(self, qual, name=""):
        return not self.qual or any(fnmatch.fnmatch(".".join(qual.split(".")[:i + 1]), self.qual) for i in range(len(qual.split("."))))

def load_names(folder):
    entries, problems = [], []
    for path in sorted(folder.glob("*.txt")):
        scope = None
        for i, line in enumerate(path.read_text().splitlines(), 1):
            line = line.split("#")[0].strip()
            if not line: continue
            if line.startswith("["):
                scope = line.strip("[]"); continue
            parts = line.split()
            if len(parts) != 2 or scope is None: raise SystemExit(f"{path}:{i}: expected `old new`, got {line!r}")
            old, new = parts
            sigil = old[0] if old[0] in ".=~?\"" else ""
            old = old.strip('.=~?"')
            if not all(n.isidentifier() for n in new.split("|")): raise SystemExit(f"{path}:{i}: {new!r} is no identifier")
            entries.append(Entry(scope, sigil, old, new, f"{path.name}:{i}"))
    return entries

# ---------------------------------------------------------------- step 1: names
class Names:
    def __init__(self, root, entries):
        self.root, self.entries = root, entries
        self.files = [f for f in git(root, "ls-files", "*.py").split() if (root / f).exists()]
        self.text = {f: (root / f).read_text() for f in self.files}
        self.tokens, self.strings = {}, {}
        for f in self.files:
            _, self.tokens[f], self.strings[f] = tokens_of(f, self.text[f])
        self.at = {t.key: t for ts in self.tokens.values() for t in ts}
        self.by_name = collections.defaultdict(list)
        for t in self.at.values(): self.by_name[t.name].append(t)
        self.edits = {}  # key -> (new, priority, entry)

    def want(self, t, entry, priority):
        old = self.edits.get(t.key)
        if old and old[0] != entry.new:
            if old[1] == priority:
                warn(f"CLASH {t.file}:{t.line} `{t.name}`: {old[2].where} says {old[0]}, {entry.where} says {entry.new}")
            if old[1] >= priority: return
        self.edits[t.key] = (entry.new, priority, entry)

    def direct(self):
        self.pending = []
        names = {f: {t.name for t in ts if t.cls == "N"} for f, ts in self.tokens.items()}
        for e in self.entries:
            if e.optional: self.optional(e, names)
            if e.classes == "S" or e.optional: continue
            for t in self.by_name.get(e.old, ()):
                if t.cls in e.classes and e.file_fits(t.file) and e.qual_fits(t.qual) and not (t.of_module and not e.everywhere):
                    e.hits += 1
                    self.want(t, e, e.priority)
                    if not e.everywhere and t.kind in ("def", "method", "field", "attr", "param", "const"): self.pending.append((t, e))

    def optional(self, e, names):
        """Locals alone, file by file: by the first of the new names that the file does not have; else not at all."""
        for f in self.files:
            if not e.file_fits(f) or e.old not in names[f]: continue
            here = [t for t in self.tokens[f] if t.cls == "N" and t.name == e.old and e.qual_fits(t.qual)]
            if any(t.kind in ("def", "const", "import") or (t.kind == "param" and any(o.cls == "K" for o in self.by_name[e.old])) for t in here): continue
            if any(t.kind == "param" for t in here) and any(re.fullmatch(r"[\"'][\w, ]+[\"']", s.value) and e.old in re.findall(r"\w+", s.value) for s in self.strings[f]): continue
            new = next((n for n in e.new.split("|") if n not in names[f]), None)
            if new is None: continue
            names[f].add(new); e.hits += 1
            copy = Entry(e.scope, "", e.old, new, e.where); copy.priority = 0.5
            for t in here: self.want(t, copy, 0.5)

    def propagate(self):
        scratch = HERE / "scratch"
        if scratch.exists(): shutil.rmtree(scratch)
        for f in self.files:
            (scratch / f).parent.mkdir(parents=True, exist_ok=True); (scratch / f).write_text(self.text[f])
        import json
        venv = Path(os.path.realpath(self.root / ".venv"))
        (scratch / "pyrightconfig.json").write_text(json.dumps({"include": ["src", "tests", "benchmarks", "examples"], "extraPaths": ["src"],
            "venvPath": str(venv.parent), "venv": venv.name, "typeCheckingMode": "off", "pythonVersion": "3.11"}))
        server = next(venv.glob("lib/python3*/site-packages/pyright/dist/langserver.index.js"))
        lsp, done, asked, start = None, set(), 0, time.time()
        prefix = scratch.as_uri() + "/"
        import hashlib, pickle
        digest = hashlib.sha1("".join(f + self.text[f] for f in self.files).encode()).hexdigest()
        store = HERE / "references.pkl"
        cache = pickle.loads(store.read_bytes()) if store.exists() else {}
        cache = cache if cache.get("tree") == digest else {"tree": digest}
        imported = {t.name for t in self.at.values() if t.kind == "import"}
        for t, e in self.pending:
            if t.key in done or self.edits[t.key][2] is not e: continue
            others = [o for o in self.by_name[t.name] if o is not t and (o.key not in self.edits or (self.edits[o.key][1] < e.priority and self.edits[o.key][0] != e.new))]
            if t.kind == "param": others = [o for o in others if o.cls == "K"]
            elif t.cls == "N":
                if t.qual: continue  # seen in its function alone
                if t.name not in imported: others = [o for o in others if o.cls == "A"]
            if not others: continue
            if t.key not in cache:
                if lsp is None:
                    lsp = Pyright(scratch, str(server)); lsp.warm_up(t.file, t.line - 1, t.col)
                asked += 1
                began = time.time()
                cache[t.key] = [(r["uri"][len(prefix):], r["range"]["start"]["line"] + 1, r["range"]["start"]["character"])
                                for r in lsp.references(t.file, t.line - 1, t.col) or []]
                if time.time() - began > 5: print(f"{t.file}:{t.line} {t.name}: {time.time() - began:.0f} s", flush=True)
                if asked % 100 == 0:
                    store.write_bytes(pickle.dumps(cache)); print(f"{asked} definitions, {time.time() - start:.0f} s", flush=True)
            for key in cache[t.key]:
                o = self.at.get(key)
                if o is None or o.name != t.name: continue
                done.add(o.key)
                self.want(o, e, 10 + e.priority)
        store.write_bytes(pickle.dumps(cache))
        if lsp: lsp.close()
        print(f"pyright: {asked} definitions asked in {time.time() - start:.0f} s")
        shutil.rmtree(scratch)

    def maps(self, f):
        """What each old name became in the file, where that is one name alone."""
        seen = collections.defaultdict(set)
        for t in self.tokens[f]:
            e = self.edits.get(t.key)
            seen[t.name].add(e[0] if e else t.name)
        return {o: next(iter(n)) for o, n in seen.items() if len(n) == 1 and next(iter(n)) != o}, seen

    def rewritten(self, f, globals_):
        text, lines = self.text[f], self.text[f].split("\n")
        changes = []  # (line, col, old, new)
        for t in self.tokens[f]:
            e = self.edits.get(t.key)
            if e: changes.append((t.line, t.col, t.name, e[0]))
        one, seen = self.maps(f)
        table = {**{o: n for o, n in globals_.items() if o not in seen or o in one}, **one}
        # strings that name members
        members = {**globals_, **{t.name: self.edits[t.key][0] for t in self.tokens[f] if t.key in self.edits and t.cls == "A"}}
        entries = [e for e in self.entries if e.classes == "S" and e.file_fits(f)]
        for leaf in self.strings[f]:
            m = re.fullmatch(r"([rRuU]?)(['\"])(\w+)\2", leaf.value)
            hit = None
            if m:
                q = ".".join(n for n, _ in qual_of(leaf))
                for e in entries:
                    if e.old == m[3] and e.qual_fits(q): hit = e.new; e.hits += 1
                if hit is None and m[3] in members and names_a_member(leaf): hit = members[m[3]]
                elif hit is None and m[3] in members and f.startswith("src") : self.review.append(f"{f}:{leaf.line} {leaf.value} (renamed elsewhere to {members[m[3]]})")
                if hit: changes.append((leaf.line, leaf.column + len(m[1]) + 1, m[3], hit))
            elif re.fullmatch(r"(['\"])[\w\[\]., ]*[|\[][\w\[\]., |]*\1", leaf.value):  # an annotation in quotes
                changes += [(leaf.line, leaf.column + n.start(), n[0], table[n[0]]) for n in re.finditer(r"(?<![\w.])[A-Z]\w*", leaf.value) if n[0] in table]
            elif leaf.parent.type == "simple_stmt" or leaf.value[-3:] in ('"""', "'''"):
                changes += self.in_text(leaf.value, leaf.line, leaf.column, table, leaf)
            else: changes += self.unmistakable(leaf.value, leaf.line, leaf.column, {**globals_, **table}, False)
        # comments
        leaf = None
        for i, line in enumerate(lines, 1):
            pass
        for line, col, comment in comments_of(text):
            changes += self.in_text(comment, line, col, table, None)
        out = list(lines)
        for line, col, old, new in sorted(set(changes), reverse=True):
            assert out[line - 1][col:col + len(old)] == old, (f, line, col, old, out[line - 1])
            out[line - 1] = out[line - 1][:col] + new + out[line - 1][col + len(old):]
        return "\n".join(out)

    def in_text(self, text, line, col, table, leaf):
        """Changes within a docstring or comment: in backticks, on doctest lines, and as the names that an Args section lists."""
        found, args = [], False
        for k, row in enumerate(text.split("\n")):
            base = col if k == 0 else 0
            spans = [m.span(1) for m in re.finditer(r"`([^`\n]+)`", row)]
            if re.match(r"\s*(>>>|\.\.\.) ", row): spans = [(0, len(row))]
            head = re.match(r"\s*(Args|Attributes|Keyword Args):\s*$", row)
            if head: args = True
            elif re.match(r"\s*[A-Z]\w+:\s*$", row): args = False
            elif args:
                m = re.match(r"\s+(\*{0,2}\w+(?:, \*{0,2}\w+)*):", row)
                if m: spans.append(m.span(1))
            for a, b in spans:
                for m in re.finditer(r"(?<![\w\"'])[A-Za-z_]\w*", row[a:b]):
                    if m[0] in table: found.append((line + k, base + a + m.start(), m[0], table[m[0]]))
            found += self.unmistakable(row, line + k, base, table)
            m = re.match(r"\s+([A-Z]\w+): ", row)
            if m and m[1] in table: found.append((line + k, base + m.start(1), m[1], table[m[1]]))
        return found

    def unmistakable(self, row, line, base, table, snake=True):
        """Names that are no words of the language: CamelCase of several words, and (where asked) snake_case."""
        pattern = r"(?<![\w.\"'/])_?(?:(?:[A-Z][a-z0-9]+){2,}" + (r"|[a-z]+(?:_[a-z0-9]+)+" if snake else "") + r")(?![\w\"'/])"
        return [(line, base + m.start(), m[0], table[m[0]]) for m in re.finditer(pattern, row) if m[0] in table]

def names_a_member(leaf):
    """Whether a string is an argument of getattr and its like, or stands in `__slots__`, `__all__` or `__match_args__`."""
    node = leaf.parent
    while node is not None and node.type in ("arglist", "testlist_comp", "testlist_star_expr", "atom", "testlist", "trailer", "expr_stmt", "annassign"):
        if node.type == "trailer" and node.children[0].value == "(":
            prev = node.get_previous_leaf()
            return prev is not None and prev.value in ("getattr", "hasattr", "setattr", "delattr", "attrgetter", "methodcaller", "overrides", "getattr_static")
        if node.type == "expr_stmt":
            return node.get_first_leaf().value in ("__slots__", "__all__", "__match_args__", "not_state", "_TAPED", "_LIFTED", "_READ", "_LEFT_OUT")
        node = node.parent
    return False

def comments_of(text):
    import io, tokenize
    for t in tokenize.generate_tokens(io.StringIO(text).readline):
        if t.type == tokenize.COMMENT: yield t.start[0], t.start[1], t.string

# ---------------------------------------------------------------- step 2: modules
def git(root, *args):
    return subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=True).stdout

def load_modules(root):
    files = git(root, "ls-files").split()
    moves = {}
    for line in (HERE / "modules.txt").read_text().splitlines():
        line = line.split("#")[0].strip()
        if not line: continue
        old, new = (p.strip() for p in line.split("->"))
        if old.endswith("/"):
            hits = [f for f in files if f.startswith(old)]
            if not hits: warn(f"modules.txt: no file in {old}")
            for f in hits: moves.setdefault(f, new + f[len(old):])
        elif old in files: moves[old] = new
        else: warn(f"modules.txt: {old} is not in the tree")
    # files that a folder's rule moves and that a line of its own names
    return moves

def dotted(path):
    p = path[:-3].removeprefix("src/").split("/")
    if p[-1] == "__init__": p = p[:-1]
    return ".".join(p)

class Modules:
    def __init__(self, root, moves):
        self.root, self.moves = root, moves
        self.table = {dotted(o): dotted(n) for o, n in moves.items() if o.endswith(".py")}
        self.new_of = {o: n for o, n in moves.items()}
        files = [f for f in git(root, "ls-files", "*.py").split()]
        self.files = set(files)
        self.known = {dotted(f) for f in files}
        self.known |= {k.rpartition(".")[0] for k in set(self.known)}
    def target(self, name): return self.table.get(name, name)

    def imports(self, file, text):
        """The text with its imports rewritten for where the file will stand; and the local names of modules that changed."""
        old_pkg = dotted(file).split(".") if file.endswith("__init__.py") else dotted(file).split(".")[:-1]
        new_file = self.new_of.get(file, file)
        new_pkg = dotted(new_file).split(".") if new_file.endswith("__init__.py") else dotted(new_file).split(".")[:-1]
        tree = ast.parse(text); lines = text.split("\n"); renamed = {}
        nodes = [n for n in ast.walk(tree) if isinstance(n, (ast.ImportFrom, ast.Import))]
        for n in sorted(nodes, key=lambda n: -n.lineno):
            if isinstance(n, ast.Import):
                continue  # dotted names in text are rewritten below
            base = n.module or ""
            if n.level:
                up = old_pkg[:len(old_pkg) - n.level + 1]
                full = ".".join(up + ([base] if base else []))
            else: full = base
            if full.split(".")[0] not in ("vecrl", "tests", "benchmarks"): continue
            groups = collections.OrderedDict()
            for a in n.names:
                sub = f"{full}.{a.name}"
                if sub in self.known and sub in self.table or (sub in self.known and full not in self.known and full + ".__init__" not in self.known):
                    new = self.target(sub); mod, _, leaf = new.rpartition(".")
                    asname = a.asname
                    if asname is None and leaf != a.name:
                        renamed[a.name] = leaf
                    groups.setdefault(mod, []).append((leaf, asname))
                else:
                    groups.setdefault(self.target(full), []).append((a.name, a.asname))
            if list(groups) == [full] and old_pkg == new_pkg and all(x == (a.name, a.asname) for x, a in zip(groups[full], n.names)): continue
            head = lines[n.lineno - 1][: n.col_offset]
            stmts = []
            for mod, names in groups.items():
                if n.level:
                    parts = mod.split("."); k = 0
                    while k < min(len(parts), len(new_pkg)) and parts[k] == new_pkg[k]: k += 1
                    src = "." * (len(new_pkg) - k + 1) + ".".join(parts[k:])
                else: src = mod
                stmts.append(f"from {src} import " + ", ".join(x if not y else f"{x} as {y}" for x, y in names))
            tail = lines[n.end_lineno - 1][n.end_col_offset:]
            first_tail = ""
            if n.end_lineno > n.lineno:  # comments on the first line of a bracket (noqa and the like)
                m = re.search(r"#.*$", lines[n.lineno - 1]); first_tail = "  " + m[0] if m else ""
            new_lines = [(head if not head.strip() else head) + s for s in stmts]
            if head.strip(): new_lines = [head + "; ".join(stmts)]
            new_lines[-1] += tail + first_tail
            # several statements: keep the indentation
            lines[n.lineno - 1: n.end_lineno] = new_lines
        return "\n".join(lines), renamed

    def lazy_tables(self, file, text):
        """Keys of a table that say in which module of the package a name lives: `"makers": ("make_gym_env", ...),`."""
        package = dotted(file)
        def key(m):
            new = self.table.get(f"{package}.{m[2]}")
            return m[0] if new is None else f'{m[1]}"{new.removeprefix(package + ".")}": ('
        return re.sub(r'(?m)^(\s+)"(\w+)": \(', key, text)

    exports: dict = {}
    def in_text(self, text, doc=False):
        """Dotted names and paths in any text."""
        def dot(m):
            parts = m[0].split(".")
            for k in range(len(parts), 0, -1):
                name = ".".join(parts[:k])
                if name in self.table or name in self.known:
                    rest = parts[k:]
                    if rest: rest[0] = self.exports.get((name, rest[0]), rest[0])
                    return ".".join([self.table.get(name, name), *rest])
            return m[0]
        text = re.sub(r"(?<![\w./])(?:vecrl|tests|benchmarks)(?:\.[A-Za-z_]\w*)+", dot, text)
        text = re.sub(r"(?<=::: )vecrl(?:\.\w+)+", dot, text)
        for old, new in sorted(self.moves.items(), key=lambda i: -len(i[0])):
            if old in text: text = re.sub(rf"(?<![\w./]){re.escape(old)}(?!\w)", new, text)
        if "`" in text or doc: text = "\n".join(map(self._paths_in_backticks, text.split("\n")))
        return text
    def _paths_in_backticks(self, line):
        """`engine/arena.py`, `owner.py` (a basename goes by the folder before it)."""
        folders = {"old": "", "new": ""}
        def path(m):
            name = m[1]
            tries = [f"src/vecrl/{name}", f"src/vecrl/{folders['old']}/{name}" if folders["old"] and "/" not in name else ""]
            for old in tries:
                if old and (old in self.moves or old in self.files):
                    new = self.moves.get(old, old).removeprefix("src/vecrl/")
                    folders["old"] = old.removeprefix("src/vecrl/").rpartition("/")[0]
                    folder, _, base = new.rpartition("/")
                    short = "/" not in name and folder == folders["new"]
                    folders["new"] = folder
                    return f"`{base if short else new}`"
            return m[0]
        return re.sub(r"`([\w/]+\.py)`", path, line)

# ---------------------------------------------------------------- step 5: long lines
def lift_comments(path, limit=120):
    """Puts a trailing comment of a line that became too long onto a line of its own above."""
    import tokenize, io
    text = path.read_text(); lines = text.split("\n"); changed = False
    for line, col, comment in sorted(comments_of(text), reverse=True):
        row = lines[line - 1]
        if len(row) > limit and row[:col].strip() and not re.match(r"# (noqa|pyright|type:)", comment):
            indent = re.match(r"\s*", row)[0]
            lines[line - 1 : line] = [indent + comment, row[:col].rstrip()]; changed = True
    if changed: path.write_text("\n".join(lines))

def split_strings(path, limit=120):
    """Splits a string literal that reaches beyond the limit into two adjacent ones, at the last space (or after a newline's escape)."""
    import io, tokenize
    lines = path.read_text().split("\n"); changed = False
    for t in reversed(list(tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline))):
        if t.type != tokenize.STRING or t.start[0] != t.end[0] or t.end[1] <= limit or t.string[-3:] in ('"""', "'''"): continue
        row, (a, b) = lines[t.start[0] - 1], (t.start[1], t.end[1])
        m = re.match(r"([a-zA-Z]*)(['\"])", t.string)
        prefix, quote = m[1], m[2]
        body, depth, cuts = t.string, 0, []
        for i, c in enumerate(body):
            if "f" in prefix.lower() and c in "{}": depth += 1 if c == "{" else -1
            if depth == 0 and c == " " and len(m[0]) < i < len(body) - 2: cuts.append(i + 1)
        standing = not row[:a].strip() and row[b:].strip() in ("", ",")  # a line of its own: within brackets
        good = [i for i in cuts if a + i + 1 <= limit]
        if not good: continue
        cut = good[-1]
        first, second = body[:cut] + quote, prefix + quote + body[cut:]
        if standing: lines[t.start[0] - 1 : t.start[0]] = [row[:a] + first, row[:a] + second + row[b:]]
        else: lines[t.start[0] - 1 : t.start[0]] = [row[:a] + "(" + first, second + ")" + row[b:]] if not _in_brackets(row[:a]) else [row[:a] + first, second + row[b:]]
        changed = True
    if changed: path.write_text("\n".join(lines))

def _in_brackets(text):
    return text.count("(") + text.count("[") + text.count("{") > text.count(")") + text.count("]") + text.count("}")

def shorten(path, limit=120):
    """Breaks comments and docstring lines that became too long, at the last space that fits."""
    lines = path.read_text().split("\n"); changed = False
    strings = set()
    import io, tokenize
    tokens = list(tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline))
    for t in tokens:
        if t.type == tokenize.STRING and (t.end[0] > t.start[0] or t.line[: t.start[1]].strip() == "" and t.string.startswith('"""')):
            strings |= set(range(t.start[0], t.end[0] + 1))
    out = []
    for i, line in enumerate(lines, 1):
        if len(line) > limit:
            m = re.match(r"\s*# ?", line)
            if m or i in strings:
                indent = m[0] if m else re.match(r"\s*", line)[0]
                if not m and re.match(r"\s*(>>>|\.\.\.) |\s*\|", line): pass
                else:
                    cut = line.rfind(" ", len(indent) + 1, limit + 1)
                    rest = line[cut + 1:]
                    nxt = lines[i] if i < len(lines) else ""
                    # join with the next line of the paragraph if it fits and is indented alike
                    out.append(line[:cut].rstrip())
                    same = re.match(r"\s*# ?" if m else r"\s*", nxt)
                    out.append(indent + rest); changed = True
                    continue
        out.append(line)
    if changed: path.write_text("\n".join(out))
    return changed

# ---------------------------------------------------------------- main
def main():
    root = Path(sys.argv[1]).resolve()
    if git(root, "status", "--porcelain", "-uno").strip() and "--dirty" not in sys.argv:
        raise SystemExit("Expected a clean checkout, got uncommitted changes. Commit or drop them first (or pass --dirty).")
    started = time.time()
    entries = load_names(HERE / "names")
    names = Names(root, entries); names.review = []
    print(f"{len(names.files)} files, {len(names.at)} tokens, {len(entries)} entries ({time.time() - started:.0f} s)")
    names.direct(); names.propagate()
    import overrides
    for line in overrides.differences(names): warn(f"OVERRIDE {line}")
    globals_ = {e.old: e.new for e in entries if e.everywhere and e.classes != "S" and e.classes != "K"}
    new_text = {}
    for f in names.files:
        text = names.rewritten(f, globals_)
        if text != names.text[f]:
            check_bindings(f, names.text[f], text)
        new_text[f] = text
    print(f"rewritten ({time.time() - started:.0f} s)", flush=True)
    for e in entries:
        if not e.hits: warn(f"NOTHING {e.where} [{e.scope}] {e.sigil}{e.old} -> {e.new}")
    # members that were renamed somewhere and not elsewhere
    part = collections.defaultdict(lambda: [set(), set()])
    for t in names.at.values():
        if t.cls == "A": part[t.name][t.key in names.edits].add(t.file)
    defs_left = {t.name for t in names.at.values() if t.cls in "AN" and t.kind in ("method", "field", "attr") and t.key not in names.edits}
    for name, (no, yes) in sorted(part.items()):
        if no and yes and name not in defs_left: names.review.append(f"attribute `{name}` is still used in {sorted(no)[:6]} though every definition was renamed")
    for f, text in new_text.items():
        if text != names.text[f]: (root / f).write_text(text)
    # modules
    moves = load_modules(root)
    modules = Modules(root, moves)
    modules.exports = {(dotted(t.file), t.name): names.edits[t.key][0] for t in names.at.values()
                       if not t.qual and t.kind in ("def", "const") and t.key in names.edits}
    for f in names.files:
        text, renamed = modules.imports(f, new_text[f])
        if renamed:
            _, toks, _ = tokens_of(f, text)
            lines = text.split("\n")
            for t in sorted((t for t in toks if t.cls == "N" and t.name in renamed and t.kind != "import"), key=lambda t: (-t.line, -t.col)):
                lines[t.line - 1] = lines[t.line - 1][:t.col] + renamed[t.name] + lines[t.line - 1][t.col + len(t.name):]
            text = "\n".join(lines)
        if f.endswith("__init__.py"): text = modules.lazy_tables(f, text)
        new_text[f] = text
        (root / f).write_text(modules.in_text(text))
    others = [f for f in git(root, "ls-files").split() if not f.endswith((".py", ".svg", ".png"))]
    for f in others:
        old = text = (root / f).read_text()
        if f.endswith(".md") and f != "CHANGELOG.md":
            own = docs_table(f)
            text = in_markdown(text, {**globals_, **own}, own)
        text = modules.in_text(text, f.endswith(".md"))
        if text != old: (root / f).write_text(text)
    for old, new in moves.items():
        (root / new).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", old, new], cwd=root, check=True)
    for new in sorted(set(moves.values())):
        p = (root / new).parent
        while p != root and new.startswith("src/vecrl"):
            if not (p / "__init__.py").exists() and p.name != "src": (p / "__init__.py").write_text(""); git(root, "add", str(p / "__init__.py"))
            p = p.parent
    print(f"moved ({time.time() - started:.0f} s)", flush=True)
    # patches
    sys.path.insert(0, str(HERE))
    from patches import PATCHES, CREATE
    for file, old, new in PATCHES:
        p = root / file
        text = p.read_text() if p.exists() else ""
        if old not in text: warn(f"PATCH {file}: {old[:80]!r} is not there"); continue
        p.write_text(text.replace(old, new))
    for file, text in CREATE.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True); (root / file).write_text(text); git(root, "add", file)
    ruff = root / ".venv" / "bin" / "ruff"
    subprocess.run([ruff, "check", "-q", "--fix", "--select", "I,RUF022,RUF023", "."], cwd=root)
    for f in git(root, "ls-files", "*.py").split():
        if (root / f).exists(): lift_comments(root / f)
    subprocess.run([ruff, "format", "-q", "."], cwd=root)
    for f in git(root, "ls-files", "*.py").split():
        if (root / f).exists():
            for _ in range(3):
                if not shorten(root / f): break
            split_strings(root / f)
    subprocess.run([ruff, "format", "-q", "."], cwd=root)
    for f in ("warnings.txt", "review.txt"): (HERE / f).unlink(missing_ok=True)
    (HERE / "warnings.txt").write_text("\n".join(warnings) + "\n")
    (HERE / "review.txt").write_text("\n".join(sorted(set(names.review))) + "\n")
    print(*warnings, sep="\n")
    print(f"{len(warnings)} warnings (warnings.txt), {len(set(names.review))} places to review (review.txt), {time.time() - started:.0f} s")

def docs_table(file):
    """Names for the docs: sections of files, as in names/."""
    table, here = {}, False
    for line in (HERE / "docs.txt").read_text().splitlines():
        line = line.split("#")[0].strip()
        if line.startswith("["): here = any(fnmatch.fnmatch(file, g) for g in line.strip("[]").split())
        elif line and here: table[line.split()[0]] = line.split()[1]
    return table

def in_markdown(text, ticks, fences):
    """Names in backticks by one table, those in fenced code by another: code has names of its own."""
    out, fenced = [], False
    for line in text.split("\n"):
        if line.startswith("```"): fenced = not fenced
        spans = [(0, len(line))] if fenced else [m.span(1) for m in re.finditer(r"`([^`]+)`", line)]
        table = fences if fenced else ticks
        for a, b in sorted(spans, reverse=True):
            line = line[:a] + re.sub(r"(?<![\w/.\-])[A-Za-z_]\w*(?![\w/\-])|(?<=[a-zA-Z_)\]]\.)[A-Za-z_]\w*", lambda m: table.get(m[0], m[0]), line[a:b]) + line[b:]
        out.append(line)
    return "\n".join(out)

if __name__ == "__main__":
    main()
