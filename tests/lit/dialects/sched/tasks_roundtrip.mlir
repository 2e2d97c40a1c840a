// Rows of tasks: segments in iterations, what repeats once, what joins a bucket, what is behind a row of another task.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK:      sched.tasks @middle of "middle" layers {L.local0 = 2 : i64} {
// CHECK-NEXT:   F = "0 (1@0+1 2@0+1)*4",
// CHECK-NEXT:   B = "3 4",
// CHECK-NEXT:   step = "5@0>B.0 ~5@1 6"
// CHECK-NEXT: }
sched.tasks @middle of "middle" layers {L.local0 = 2 : i64} {
  F = "0 1@0 2@0 1@1 2@1 (1@2+1 2@2+1)*2",
  B = "3 4",
  step = "5@0>B.0 ~5@1 6"
}

// CHECK: sched.tasks @empty of "" layers {} {}
sched.tasks @empty of "" layers {} {}
