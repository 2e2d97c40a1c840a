// What is made of terms of losses and of constants stays terms of a loss; what is not linear in them, or adds them to what is none, needs their sum.
// RUN: stagec-opt %s -p localize-shapes | filecheck %s

!n = !stg.tensor<[], bf16>
stg.program "M" () {
  %x = "test.op"() : () -> !stg.tensor<[B/dp, D], bf16>
  // CHECK:     %a = stg.reduce
  // CHECK-NOT: dist.reshard
  // CHECK:     stg.add %a, {{.*}} -> !stg.tensor<[], bf16, partial [dp]>
  %a = stg.reduce "sum" %x over [B, D] {placement = #dist.placement<[B/dp]>} : (!stg.tensor<[B/dp, D], bf16>) -> !n
  %b = stg.reduce "mean" %x over [B, D] {placement = #dist.placement<[B/dp]>} : (!stg.tensor<[B/dp, D], bf16>) -> !n
  %c = stg.constant "0.3" : !n
  %d = stg.mul %c, %b {placement = #dist.placement<[]>} : (!n, !n) -> !n
  %e = stg.div %d, %c {placement = #dist.placement<[]>} : (!n, !n) -> !n
  %f = stg.add %a, %e {placement = #dist.placement<[]>} : (!n, !n) -> !n
  // CHECK:      dist.reshard
  // CHECK-NEXT: stg.unary "softplus" {{.*}} -> !stg.tensor<[], bf16>
  %g = stg.unary "softplus" %f {placement = #dist.placement<[]>} : (!n) -> !n
  // CHECK:      dist.reshard %a
  // CHECK-NEXT: stg.sub {{.*}} -> !stg.tensor<[], bf16>
  %h = stg.sub %a, %g {placement = #dist.placement<[]>} : (!n, !n) -> !n
  stg.output %h : !n
}
