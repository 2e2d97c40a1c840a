// Types and attributes: dims and what splits them in order, dtypes, terms of sums, stacks, sizes.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: !stg.tensor<[], fp32>
%number = "test.op"() : () -> !stg.tensor<[], fp32>

// CHECK: !stg.tensor<[B/dp, S/(cp*tp), D], bf16, partial [ep, fsdp]>
%tensor = "test.op"() : () -> !stg.tensor<[B / dp, S/( cp * tp ), D], bf16, partial [ep, fsdp]>

// CHECK: !stg.stack<"2*L" x !stg.stack<"M" x !stg.tensor<[D], bool>>>
%stack = "test.op"() : () -> !stg.stack<"L + L" x !stg.stack<"M" x !stg.tensor<[D], bool>>>

// CHECK: a = #stg.names[cp, tp], b = #stg.names[], c = #stg.size"2*B*S/dp", d = #dist.placement<[B/dp, H/(cp*tp)]>
"test.op"() {a = #stg.names[cp, tp], b = #stg.names[], c = #stg.size"S*B*2 / dp", d = #dist.placement<[B/dp, H/(cp*tp)]>} : () -> ()
