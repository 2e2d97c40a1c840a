// `--load-pass` adds the passes of a file.
// RUN: stagec-opt %s --load-pass %S/../cli/inputs/passes.py -p 'do-nothing{times=2}' | filecheck %s

// CHECK: dist.mesh <dp = 2>
dist.mesh <dp = 2>
