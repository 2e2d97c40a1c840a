// A shard is loaded before it is gathered: as many layers ahead of the gather as the plan says.
// RUN: stagec-opt %s -p 'offload-parameters{prefetch=1}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  %ws = stg.weight "w" : !stg.stack<"L" x !dist.shard<!stg.tensor<[D], bf16> over [dp]>>
  %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>)
      slice(%w = %ws : !stg.stack<"L" x !dist.shard<!stg.tensor<[D], bf16> over [dp]>>) -> (!stg.tensor<[B, D], bf16>) {
    // CHECK:      %[[SHARD:[^ ]*]] = dist.load(%{{[^ ]*}}) {phase = "fwd", prefetch = 3 : i64
    // CHECK-NEXT: dist.unshard(%[[SHARD]])
    %g = dist.unshard (%w) over [dp] in "bf16" {prefetch = 2 : i64} : (!dist.shard<!stg.tensor<[D], bf16> over [dp]>) -> !stg.tensor<[D], bf16>
    %m = stg.mul %h, %g : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
    stg.yield %m : !stg.tensor<[B, D], bf16>
  }
  stg.output
}
