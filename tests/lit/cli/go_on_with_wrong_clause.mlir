// A clause that no plan has, found where it stands.
// RUN: not stagec %s 2>&1 | filecheck %s

// CHECK:      error[E0709]: `dist.plan`: no clause of a plan has `zero.levle`
// CHECK-NEXT:  --> {{.*}}:6:1
dist.plan "p" batch "B" {zero = {levle = 3 : i64, axes = ["dp"]}} at {}
dist.passes []
stg.program "M" () {
  stg.output
}
