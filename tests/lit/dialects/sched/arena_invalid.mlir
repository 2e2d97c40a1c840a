// Buffers begin within the arena, which has room for what is alive at once.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: `sched.arena`: a buffer begins outside of it
sched.arena of "all" bytes 4096 live 3072 {0 = "0 8192"} "0"

// -----
// CHECK: `sched.arena`: 4096 bytes are alive at once, and it has 3072
sched.arena of "all" bytes 3072 live 4096 {0 = "0"} "0"

// -----
// CHECK: a task has a pattern that there is not
sched.arena of "all" bytes 3072 live 1024 {0 = "0"} "1"
