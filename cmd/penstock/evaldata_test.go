package main

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
)

// tableLines are rows of two columns and a target that is their sum, in an order of the columns.
func tableLines(header string, rows int, line func(a, b int, sum float64) string) string {
	var out strings.Builder
	fmt.Fprintln(&out, header)
	for i := range rows {
		a, b := i%20, i/20
		fmt.Fprintln(&out, line(a, b, 0.1*float64(a)-0.3*float64(b)))
	}
	return out.String()
}

// Rows of another file are standardised as the run's were, with their columns found by name: a model gives
// the same on them as on the same rows of the run's file.
func TestEvalOfOtherRows(t *testing.T) {
	straight := func(a, b int, sum float64) string { return fmt.Sprintf("%d,%d,%g", a, b, sum) }
	out := filepath.Join(t.TempDir(), "out")
	must(t, "train", "--model", "mlp", "--set", "width=16", "--data", "csv", "--data-dir", textFile(t, "a.csv", tableLines("a,b,sum", 200, straight)),
		"--data-set", "standardise=1,task=regression", "--batch", "20", "--chunks", "2", "--optimizer", "adam", "--lr", "0.01", "--epochs", "10", "--out", out)
	whole := evaluated(t, out, "--part", "all")
	if *whole.MSE > 0.1 {
		t.Fatalf("%+v", whole.Evaluation)
	}
	ten := textFile(t, "ten.csv", tableLines("a,b,sum", 10, straight))
	few := evaluated(t, out, "--data-dir", ten, "--part", "all")
	if few.Samples != 10 || *few.MSE > 0.3 {
		t.Errorf("10 rows: mse %g; want one such as that of all, %g", *few.MSE, *whole.MSE)
	}
	for name, args := range map[string][]string{
		"anew":          {"--data", "csv", "--data-dir", ten},
		"other columns": {"--data-dir", textFile(t, "b.csv", tableLines("sum,b,a", 10, func(a, b int, sum float64) string { return fmt.Sprintf("%g,%d,%d", sum, b, a) }))},
	} {
		got := evaluated(t, with([]string{out, "--part", "all"}, args...)...)
		// The rows are split by chance, which changes the order of the sum alone.
		if got.Samples != 10 || math.Abs(*got.MSE-*few.MSE) > 1e-5*(*few.MSE) {
			t.Errorf("%s: mse %g of %d; want %g of 10", name, *got.MSE, got.Samples, *few.MSE)
		}
	}
	for _, row := range []struct {
		args []string
		code int
		part string
	}{
		{[]string{"--data-dir", textFile(t, "c.csv", tableLines("a,c,sum", 10, straight))}, exitUsage, "the columns are a, c, sum, and the model was trained with a, b, sum"},
		{[]string{"--data-set", "target=a"}, exitUsage, `the target is "a", and the model was trained for "sum"`},
	} {
		refuses(t, with([]string{"eval", out, "--data", "csv", "--data-dir", ten}, row.args...), row.code, row.part)
	}
	plain := filepath.Join(t.TempDir(), "plain")
	must(t, "train", "--model", "mlp", "--data", "csv", "--data-dir", ten, "--data-set", "task=regression", "--batch", "4", "--chunks", "1", "--steps", "1", "--out", plain)
	refuses(t, []string{"eval", plain, "--data", "csv", "--data-dir", ten, "--data-set", "standardise=1"}, exitUsage, "the model was trained with columns as they are")
}

// Pictures are normalised as the run's were.
func TestEvalNormalisesAsTheRun(t *testing.T) {
	directory, out := folderOf(t), filepath.Join(t.TempDir(), "out")
	must(t, "train", "--model", "mlp", "--data", "images", "--data-dir", directory, "--data-set", "size=12,mean=0.1:0.2:0.3,std=2:3:4", "--batch", "7", "--chunks", "2", "--steps", "1", "--out", out)
	want := evaluated(t, out)
	if got := evaluated(t, out, "--data", "images", "--data-dir", directory, "--data-set", "size=12"); *got.Loss != *want.Loss {
		t.Errorf("loss %g; want %g", *got.Loss, *want.Loss)
	}
}
