// In buffers parameters are gathered in buckets of as many elements, after their update alone; what stages share is one by itself.
// RUN: stagec-opt %s -p 'bucket-gradients{bucket_bytes=1000 aligned=64 bucket_end=128}' | filecheck %s
!g = !stg.tensor<[D], fp32, partial [dp]>
!w = !stg.tensor<[D], bf16>
!s = !dist.shard<!w over [dp]>
!r = !dist.shard<!stg.tensor<[D], fp32> over [dp]>
dist.mesh <dp = 2>
stg.program "M" () {
  %w = stg.weight "w" : !w
  %v = stg.weight "v" : !w
  // CHECK: dist.unshard{{.*}}{lag = 1 : i64}
  %g, %h, %x = "test.op"() : () -> (!g, !g, !s)
  %u = dist.unshard (%x) over [dp] in "bf16" {lag = 1 : i64} : (!s) -> !w
  // CHECK: dist.reduce_shard{{.*}}aligned = 64 : i64, bucket_end = 128 : i64, bucket_bytes = 1000 : i64, first_bucket_bytes = 1000 : i64
  %a = dist.reduce_shard (%g) over [dp] in "fp32" : (!g) -> !r
  // CHECK: dist.reduce_shard{{.*}}bucket_bytes = 1 : i64, first_bucket_bytes = 1 : i64
  %b = dist.reduce_shard (%h) over [dp] in "fp32" : (!g) -> !r
  %c = dist.all_reduce_tied "v" (%b) over [pp] in "fp32" {of_whole} : (!r) -> !r
  %p = dist.take_shard (%w) over [dp] in "bf16" : (!w) -> !s
  %q = dist.take_shard (%v) over [dp] in "bf16" : (!w) -> !s
  // CHECK: dist.unshard{{.*}}aligned = 64 : i64, bucket_end = 128 : i64, bucket_bytes = 500 : i64
  %y = dist.unshard (%p) over [dp] in "bf16" {phase = "optim"} : (!s) -> !w
  // CHECK: dist.unshard{{.*}}bucket_bytes = 1 : i64
  %z = dist.unshard (%q) over [dp] in "bf16" {phase = "optim"} : (!s) -> !w
  stg.output
}
