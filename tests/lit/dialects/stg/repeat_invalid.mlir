// A carried value keeps its type, a slice is an element of a stack of as many, and so is what comes out.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.repeat`: a carried value keeps its type, but goes in as !stg.tensor<[B], bf16>, is used as !stg.tensor<[B], bf16> and comes out as !stg.tensor<[D], bf16>
%x, %z = "test.op"() : () -> (!stg.tensor<[B], bf16>, !stg.tensor<[D], bf16>)
%y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B], bf16>) -> (!stg.tensor<[B], bf16>) {
  stg.yield %z : !stg.tensor<[D], bf16>
}

// -----

// CHECK: error[E0709]: `stg.repeat`: one yielded value per result
%x = "test.op"() : () -> !stg.tensor<[B], bf16>
%y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B], bf16>) -> (!stg.tensor<[B], bf16>) {
  stg.yield
}

// -----

// CHECK: error[E0709]: `stg.repeat`: 1 values are carried, but 0 come out
%x = "test.op"() : () -> !stg.tensor<[B], bf16>
stg.repeat "L" carry(%h = %x : !stg.tensor<[B], bf16>) {
  stg.yield
}

// -----

// CHECK: error[E0709]: `stg.repeat`: it slices !stg.stack<"L" x !stg.tensor<[D], bf16>>, but is given !stg.stack<"M" x !stg.tensor<[D], bf16>>
%ws = "test.op"() : () -> !stg.stack<"M" x !stg.tensor<[D], bf16>>
stg.repeat "L" slice(%w = %ws : !stg.stack<"M" x !stg.tensor<[D], bf16>>) {
  stg.yield
}

// -----

// CHECK: error[E0709]: `stg.repeat`: it slices !stg.stack<"L" from 1 x !stg.tensor<[D], bf16>>, but is given !stg.stack<"L" x !stg.tensor<[D], bf16>>
%ws = "test.op"() : () -> !stg.stack<"L" x !stg.tensor<[D], bf16>>
stg.repeat "L" from 1 slice(%w = %ws : !stg.stack<"L" x !stg.tensor<[D], bf16>>) {
  stg.yield
}

// -----

// CHECK: error[E0708]: expected integer literal
%ws = "test.op"() : () -> !stg.stack<"L" from -1 x !stg.tensor<[D], bf16>>

// -----

// CHECK: error[E0709]: `stg.repeat`: !stg.tensor<[D], bf16> comes out as !stg.tensor<[D], bf16>
%x = "test.op"() : () -> !stg.tensor<[D], bf16>
%ys = stg.repeat "L" -> (!stg.tensor<[D], bf16>) {
  stg.yield %x : !stg.tensor<[D], bf16>
}

// -----

// CHECK: error[E0708]: only a stack can be sliced
%x = "test.op"() : () -> !stg.tensor<[D], bf16>
stg.repeat "L" slice(%w = %x : !stg.tensor<[D], bf16>) {
  stg.yield
}

// -----

// CHECK: error[E0709]: `stg.repeat`: a slice of !stg.stack<"L" x !stg.tensor<[D], bf16>> is not !stg.tensor<[F], bf16>
%ws = "test.op"() : () -> !stg.stack<"L" x !stg.tensor<[D], bf16>>
"stg.repeat"(%ws) <{count = #stg.size"L", operandSegmentSizes = array<i32: 0, 1>}> ({
^bb0(%w : !stg.tensor<[F], bf16>):
  stg.yield
}) : (!stg.stack<"L" x !stg.tensor<[D], bf16>>) -> ()

// -----

// CHECK: error[E0709]: `stg.repeat`: one body argument per carried value and slice
%ws = "test.op"() : () -> !stg.stack<"L" x !stg.tensor<[D], bf16>>
"stg.repeat"(%ws) <{count = #stg.size"L", operandSegmentSizes = array<i32: 0, 1>}> ({
  stg.yield
}) : (!stg.stack<"L" x !stg.tensor<[D], bf16>>) -> ()
