// Dims over axes, in the order in which they are tried.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: dist.rule [H, K] over [tp]
dist.rule [H, K] over [tp]

// CHECK: dist.rule [S] over [cp, tp]
dist.rule [S] over [cp, tp]

// CHECK: dist.rule [K] over [tp.K] copies [tp.copies]
dist.rule [K] over [tp.K] copies [tp.copies]
