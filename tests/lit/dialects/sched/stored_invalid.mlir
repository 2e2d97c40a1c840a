// What stays is of a known kind. Gradients are buffers of nodes, but for what pads them.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: `temporaries` is not what stays: parameters, transposed, master, optimizer, gradients, cache, process
sched.stored of "" {"w" temporaries "2*D"}

// -----
// CHECK: gradients of `w` are buffers of nodes, and said by these
sched.stored of "" {"w" gradients "2*D"}
