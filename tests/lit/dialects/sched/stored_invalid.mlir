// What stays is of a known kind, and gradients are kept in a known way.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: `temporaries` is not what stays: parameters, transposed, master, optimizer, gradients, cache, process
sched.stored of "" gradients "copied" {"w" temporaries "2*D"}

// -----
// CHECK: gradients are one of contiguous, partitioned, copied, kept, not `shared`
sched.stored of "" gradients "shared" {}
