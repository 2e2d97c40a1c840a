// A gradient is reduced over the axes that it is partial over: that of an expert's weight over fewer.
// RUN: stagec-opt %s -p 'reduce-gradients{axes="edp","ep"}' | filecheck %s

stg.program "M" () {
  %w = stg.weight "w" : !stg.tensor<[F], bf16>
  %e = stg.weight "e" : !stg.tensor<[X/ep, F], bf16>
  %dw, %de = "test.op"() : () -> (!stg.tensor<[F], fp32, partial [edp, ep]>, !stg.tensor<[X/ep, F], fp32, partial [edp]>)
  // CHECK: dist.all_reduce_gradient(%dw) over [edp, ep]
  // CHECK: dist.all_reduce_gradient(%de) over [edp]
  stg.output weights %w, %e : !stg.tensor<[F], bf16>, !stg.tensor<[X/ep, F], bf16>
    gradients %dw, %de : !stg.tensor<[F], fp32, partial [edp, ep]>, !stg.tensor<[X/ep, F], fp32, partial [edp]>
}
