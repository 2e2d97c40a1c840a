// Offsets of what each task makes are written once for tasks that place alike, and those that grow evenly by what they grow.
// RUN: stagec-opt %s | stagec-opt | filecheck %s

// CHECK:      sched.arena of "pp0" bytes 4096 live 3072 {
// CHECK-NEXT:   0 = "(0+256 1024)*8",
// CHECK-NEXT:   1 = ""
// CHECK-NEXT: } "(0 1)*4"
sched.arena of "pp0" bytes 4096 live 3072 {0 = "(0+256 1024)*8", 1 = ""} "(0 1)*4"
