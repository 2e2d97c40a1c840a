// A program that has lost its end is not compiled, whatever pass it comes from.
// RUN: not stagec %s 2>&1 | filecheck %s

// CHECK: error[E0709]: `M` does not end in `stg.output`
// CHECK: = help: end it with `stg.output`
stg.dim "B" = "4"
dist.mesh <dp = 2>
dist.plan "p" batch "B" {} at {}
dist.passes []
stg.program "M" () {
}
