"""Where entries of [*] hit definitions, by file: to see which of them mean another thing there."""
import sys, collections
sys.argv=[sys.argv[0]]+sys.argv[1:]
import rename as R
from pathlib import Path
root=Path(sys.argv[1])
entries=[e for e in R.load_names(R.HERE/"names") if e.everywhere and e.classes!="S"]
n=R.Names(root, entries)
for e in entries:
    by=collections.Counter(); refs=0
    for t in n.by_name.get(e.old,()):
        if t.cls in e.classes:
            if t.kind in("def","method","field","attr","param","const","local"): by[(t.file.replace("src/vecrl/",""),t.kind)]+=1
    files={f for f,_ in by}
    if len(files)>1 or any(f.startswith(("tests","bench","examples")) for f in files): print(e.old,'->',e.new,':',*(f"{f}:{k}" for (f,k) in by))
