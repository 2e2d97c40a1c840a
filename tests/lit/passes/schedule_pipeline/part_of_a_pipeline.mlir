// A pool that trains runs its part of the pipeline of all pools.
// RUN: stagec-opt %s -p 'schedule-pipeline{schedule="1f1b" axis="pp"}' | filecheck %s

dist.mesh <pp = 4>
dist.towers ["vision" 1 ["K"], "text" 4 ["L"]]
dist.pool "text" ranks 4 to 8 of 8
// CHECK: sched.schedule "1f1b" ranks "pp" from 1 of 5 virtual 1 microbatches "mb"
stg.program "M" () {
  stg.output
}
