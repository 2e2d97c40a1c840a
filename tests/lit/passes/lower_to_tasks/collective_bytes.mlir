// Bytes of a collective are those of a device's buffers before and after it.
// RUN: stagec-opt %s -p lower-to-tasks | filecheck %s

dist.mesh <cp = 2, tp = 4>
stg.program "M" (%x : !stg.tensor<[S/(cp*tp), D], bf16>, %p : !stg.tensor<[S, D], fp32, partial [cp, tp]>, %h : !stg.tensor<[S/tp, H], bf16>) {
  // CHECK: sched.collective "all_gather"(%x) over [cp, tp] in "bf16" bytes "2*D*S/(cp*tp)" to "2*D*S" on "comm.cp.tp"
  %g = dist.all_gather %x dim "S" over [cp, tp] : !stg.tensor<[S/(cp*tp), D], bf16> -> !stg.tensor<[S, D], bf16>
  // CHECK: sched.collective "all_reduce"(%p) over [cp] in "fp32" bytes "4*D*S" to "4*D*S" on "comm.cp"
  %r = dist.all_reduce "sum" %p over [cp] : !stg.tensor<[S, D], fp32, partial [cp, tp]> -> !stg.tensor<[S, D], fp32, partial [tp]>
  // CHECK: sched.collective "reduce_scatter"(%{{.*}}) over [tp] in "fp32" bytes "4*D*S" to "4*D*S/tp" on "comm.tp"
  %s = dist.reduce_scatter %r dim "S" over [tp] : !stg.tensor<[S, D], fp32, partial [tp]> -> !stg.tensor<[S/tp, D], fp32>
  // CHECK: sched.collective "all_to_all"(%h) over [tp] in "bf16" bytes "2*H*S/tp" to "2*H*S/tp"
  %a = dist.all_to_all %h gather "S" scatter "H" over [tp] : !stg.tensor<[S/tp, H], bf16> -> !stg.tensor<[S, H/tp], bf16>
  stg.output
}
