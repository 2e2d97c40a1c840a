// Kernels that copy gradients to fp32, and master weights to what is stored, are among what the step moves; the norm reads the copies.
// RUN: stagec-opt %s -p 'insert-optimizer{algorithm="adamw" states="fp32" master="fp32" copies=true},clip-gradients{norm=true},lower-to-tasks' | filecheck %s
!g = !stg.tensor<[D], bf16>
stg.dim "D" = "8"
dist.mesh <dp = 2>
stg.program "M" (%g : !g) {
  %w = stg.weight "w" : !g
  // Two reads and a write of fp32; the number besides.
  // CHECK: sched.compute "gradient_statistic"{{.*}} reads "8*D" writes "4*D + 4"
  // The gradient as it is, its copy, the master copy twice, two states; behind it all but those in bf16, and the copy.
  // CHECK: sched.compute "optimizer_step"{{.*}} reads "22*D" writes "18*D"
  stg.output weights %w : !g gradients %g : !g
}
