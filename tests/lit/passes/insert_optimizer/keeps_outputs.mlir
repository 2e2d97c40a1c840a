// What the program hands on otherwise stays.
// RUN: stagec-opt %s -p 'insert-optimizer{algorithm="sgd"}' | filecheck %s

stg.program "M" () {
  %w = stg.weight "w" : !stg.tensor<[D], fp32>
  %g, %loss = "test.op"() : () -> (!stg.tensor<[D], fp32>, !stg.tensor<[], fp32>)
  // CHECK: stg.optimizer_step "sgd"
  // CHECK-NEXT: stg.output %loss : !stg.tensor<[], fp32>{{$}}
  stg.output %loss : !stg.tensor<[], fp32> weights %w : !stg.tensor<[D], fp32> gradients %g : !stg.tensor<[D], fp32>
}
