// Partial terms are reduced where the last of them is made, not where more is added to them.
// RUN: stagec-opt %s -p defer-reductions | filecheck %s

!p = !stg.tensor<[B, D], bf16, partial [tp]>
!t = !stg.tensor<[B, D], bf16>
dist.mesh <tp = 2>
stg.program "M" (%carried : !t) {
  // CHECK:      %a = "test.op"
  // CHECK-NEXT: %b, %w = "test.op"
  // CHECK-NEXT: %0 = stg.add %a, %b {scope = "Block.Cross"
  // CHECK-NEXT: %1 = dist.reshard %0 {scope = "Block.Cross"
  // CHECK-NEXT: "test.op"() {what = "the next module"}
  // CHECK-NEXT: stg.add %carried, %1
  %a = "test.op"() : () -> !p
  %x = dist.reshard %a {scope = "Block.Cross"} : !p -> !t
  %b, %w = "test.op"() : () -> (!p, !t)
  %y = dist.reshard %b {scope = "Block.Cross"} : !p -> !t
  "test.op"() {what = "the next module"} : () -> ()
  %z = stg.add %x, %y {scope = "Block"} : (!t, !t) -> !t
  %s = stg.add %carried, %z {scope = "Block"} : (!t, !t) -> !t
  "test.op"(%s) : (!t) -> ()
  stg.output
}
