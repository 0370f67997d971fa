package main

import (
	"slices"
	"testing"
)

func TestParseCores(t *testing.T) {
	for _, row := range []struct {
		list string
		want []int
	}{{"0", []int{0}}, {"0-1", []int{0, 1}}, {"2-3,8,10-11", []int{2, 3, 8, 10, 11}}, {"", nil}, {"0-", nil}, {"all", nil}} {
		if got := parseCores(row.list); !slices.Equal(got, row.want) {
			t.Errorf("%q: got %v, want %v", row.list, got, row.want)
		}
	}
}

func TestVariantsBindOnlyToKnownCores(t *testing.T) {
	if with, without := len(variants([]int{3, 5})), len(variants(nil)); with != without+1 {
		t.Errorf("%d variants with cores, %d without", with, without)
	}
}
