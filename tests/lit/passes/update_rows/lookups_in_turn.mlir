// One kernel updates a table from all of its lookups, cast or placed in between; a stage of a pipeline may have some of them alone.
// RUN: stagec-opt %s -p 'update-rows{algorithm="adagrad"}' | filecheck %s
// RUN: stagec-opt %s -p 'update-rows{algorithm="adagrad" in_stages=true}' | filecheck %s --check-prefix STAGES

// CHECK:      stg.update_rows "adagrad" states "fp32" %t by "R"(%j, %i) from(%dz, %dy) {phase = "wgrad", made_by = "update-rows"}
// CHECK-SAME:   : !stg.tensor<[R, E], fp32>(!stg.tensor<[B], i32>, !stg.tensor<[B, J], i32>) from(!stg.tensor<[B, E], bf16>, !stg.tensor<[B, E], bf16>)
// CHECK-NEXT: stg.output
// CHECK-NEXT: }
// STAGES-NOT: stg.update_rows
stg.program "M" () {
  %t = stg.weight "t" : !stg.tensor<[R, E], fp32>
  %i, %j, %dy, %dz = "test.op"() : () -> (!stg.tensor<[B, J], i32>, !stg.tensor<[B], i32>, !stg.tensor<[B, E], bf16>, !stg.tensor<[B, E], bf16>)
  %h = stg.embedding_grad %j, %dz : (!stg.tensor<[B], i32>, !stg.tensor<[B, E], bf16>) -> !stg.tensor<[R, E], bf16>
  %g = stg.embedding_bag_grad %i, %dy over "J" : (!stg.tensor<[B, J], i32>, !stg.tensor<[B, E], bf16>) -> !stg.tensor<[R, E], bf16>
  %s = stg.add %g, %h : (!stg.tensor<[R, E], bf16>, !stg.tensor<[R, E], bf16>) -> !stg.tensor<[R, E], bf16>
  %c = stg.cast %s : (!stg.tensor<[R, E], bf16>) -> !stg.tensor<[R, E], fp32>
  stg.output weights %t : !stg.tensor<[R, E], fp32> gradients %c : !stg.tensor<[R, E], fp32>
}
