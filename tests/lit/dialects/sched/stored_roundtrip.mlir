// What stays from step to step, as closed forms, and what of it is on the host.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s
// CHECK:      sched.stored of "middle" {
// CHECK-NEXT:   "Block.wq" parameters "2*D/tp",
// CHECK-NEXT:   "Block.wq" optimizer "8*D/tp" on_host
// CHECK-NEXT: }
sched.stored of "middle" {"Block.wq" parameters "2*D/tp", "Block.wq" optimizer "8*D/tp" on_host}
// CHECK:      sched.stored of "" {
// CHECK-NEXT:   "context" process "600000000",
// CHECK-NEXT:   "padding of buffers" gradients "64" of_buffers
sched.stored of "" {"context" process "600000000", "padding of buffers" gradients "64" of_buffers}
// CHECK:      sched.stored of "" {}
sched.stored of "" {}
