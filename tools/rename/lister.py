"""Lists every identifier that the tree defines: kind, where, how often.

python lister.py <checkout> [--locals] > identifiers.tsv
"""
import ast, sys, collections, subprocess, re
from pathlib import Path

root = Path(sys.argv[1])
files = [f for f in subprocess.run(["git","ls-files","*.py"],cwd=root,capture_output=True,text=True).stdout.split() if (root/f).exists()]
D = collections.defaultdict(lambda: collections.defaultdict(list))  # name -> kind -> [file:qual]
uses = collections.Counter()

class V(ast.NodeVisitor):
    def __init__(s, f): s.f=f; s.st=[]
    def add(s, n, k): D[n][k].append(f"{s.f}::{'.'.join(x for x,_ in s.st)}")
    @property
    def where(s): return s.st[-1][1] if s.st else "module"
    def visit_ClassDef(s,n):
        s.add(n.name,"class"); s.st.append((n.name,"class")); 
        for d in n.decorator_list+n.bases: s.visit(d)
        for b in n.body: s.visit(b)
        s.st.pop()
    def visit_FunctionDef(s,n):
        s.add(n.name,"method" if s.where=="class" else "func" if s.where=="module" else "inner")
        s.st.append((n.name,"func"))
        a=n.args
        for x in a.posonlyargs+a.args+a.kwonlyargs+[y for y in (a.vararg,a.kwarg) if y]:
            s.add(x.arg,"param")
        s.generic_visit(n)
        s.st.pop()
    visit_AsyncFunctionDef=visit_FunctionDef
    def visit_Lambda(s,n):
        for x in n.args.posonlyargs+n.args.args+n.args.kwonlyargs+[y for y in (n.args.vararg,n.args.kwarg) if y]: s.add(x.arg,"param")
        s.generic_visit(n)
    def visit_Name(s,n):
        uses[n.id]+=1
        if isinstance(n.ctx,ast.Store): s.add(n.id,{"module":"const","class":"field","func":"local"}[s.where])
    def visit_Attribute(s,n):
        uses[n.attr]+=1
        if isinstance(n.ctx,ast.Store): s.add(n.attr,"attr")
        s.visit(n.value)
    def visit_ImportFrom(s,n):
        for al in n.names:
            uses[al.name]+=1
            if al.asname: s.add(al.asname,"import")
    def visit_ExceptHandler(s,n):
        if n.name: s.add(n.name,"local")
        s.generic_visit(n)
    def visit_MatchAs(s,n):
        if n.name: s.add(n.name,"local")
        s.generic_visit(n)
    def visit_keyword(s,n):
        if n.arg: uses[n.arg]+=1
        s.generic_visit(n)
for f in files: V(f).visit(ast.parse((root/f).read_text()))
if __name__=="__main__":
    for n in sorted(D):
        print(n, uses[n], *(f"{k}={len(v)}" for k,v in D[n].items()), sep="\t")
