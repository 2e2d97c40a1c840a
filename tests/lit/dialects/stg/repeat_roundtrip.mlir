// Values are carried, stacks sliced and made; a reverse repeat runs from the last iteration.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %ws = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !stg.tensor<[D], bf16>>)

// CHECK: %y, %saved = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>) slice(%w = %ws : !stg.stack<"L" x !stg.tensor<[D], bf16>>) -> (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !stg.tensor<[B, D], bf16>>) attributes {scope = "Block"} {
%y, %saved = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>) slice(%w = %ws : !stg.stack<"L" x !stg.tensor<[D], bf16>>)
    -> (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !stg.tensor<[B, D], bf16>>) attributes {scope = "Block"} {
  %n = stg.mul %h, %w : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
  // CHECK: stg.yield %n, %h
  stg.yield %n, %h : !stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>
}

// CHECK: stg.repeat "2*L" reverse {
stg.repeat "2*L" reverse {
  stg.yield
}

// CHECK: stg.repeat "L" reverse slice(%s = %saved : !stg.stack<"L" x !stg.tensor<[B, D], bf16>>) {
stg.repeat "L" reverse slice(%s = %saved : !stg.stack<"L" x !stg.tensor<[B, D], bf16>>) {
  stg.yield
}

// CHECK: stg.repeat "L - 1" from 1 reverse slice(%o = %others : !stg.stack<"L - 1" from 1 x !stg.tensor<[D], bf16>>) -> (!stg.stack<"L - 1" from 1 x !stg.tensor<[D], bf16>>) {
%others = "test.op"() : () -> !stg.stack<"L - 1" from 1 x !stg.tensor<[D], bf16>>
%same = stg.repeat "L - 1" from 1 reverse slice(%o = %others : !stg.stack<"L - 1" from 1 x !stg.tensor<[D], bf16>>)
    -> (!stg.stack<"L - 1" from 1 x !stg.tensor<[D], bf16>>) {
  stg.yield %o : !stg.tensor<[D], bf16>
}
