// Gradients that are reduced to shards travel in buckets too, in layers as elsewhere.
// RUN: stagec-opt %s -p 'bucket-gradients{bucket_bytes=1000 first_bucket_bytes=10}' | filecheck %s

%g = "test.op"() : () -> !stg.stack<"L" x !stg.tensor<[D], fp32, partial [dp, rp]>>
%s = stg.repeat "L" reverse slice(%i = %g : !stg.stack<"L" x !stg.tensor<[D], fp32, partial [dp, rp]>>)
    -> (!stg.stack<"L" x !dist.shard<!stg.tensor<[D], fp32> over [dp]>>) {
  // CHECK: dist.reduce_shard{{.*}}bucket_bytes = 1000 : i64, first_bucket_bytes = 10 : i64
  %a = dist.reduce_shard (%i) over [dp] in "fp32"
    : (!stg.tensor<[D], fp32, partial [dp, rp]>) -> !dist.shard<!stg.tensor<[D], fp32, partial [rp]> over [dp]>
  // CHECK: dist.all_reduce_shard{{.*}}bucket_bytes = 1000 : i64, first_bucket_bytes = 10 : i64
  %b = dist.all_reduce_shard (%a) over [rp] in "fp32"
    : (!dist.shard<!stg.tensor<[D], fp32, partial [rp]> over [dp]>) -> !dist.shard<!stg.tensor<[D], fp32> over [dp]>
  stg.yield %b : !dist.shard<!stg.tensor<[D], fp32> over [dp]>
}
