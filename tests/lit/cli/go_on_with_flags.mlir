// The plan of IR is in it.
// RUN: not stagec %s --set dp=4 2>&1 | filecheck %s

// CHECK: error[E0711]: `--set` changes nothing: `{{.*}}` is IR, whose plan is in it
dist.passes []
