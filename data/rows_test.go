package data_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/must"
)

// Rows of a table to predict are those of the training set, with and without the target's column,
// whatever the order of named columns and the separator.
func TestInputsOfTables(t *testing.T) {
	rows := []float32{-1, 1, 1, -1}
	for name, test := range map[string]struct{ table, set, inputs string }{
		"names":             {"a,b,y\n1,20,no\n3,10,yes\n", "", "b;a;more\n20;1;x\n10;3;x\n"},
		"names and target":  {"a,b,y\n1,20,no\n3,10,yes\n", "", "y,a,b\nno,1,20\nno,3,10\n"},
		"numbers":           {"1,20,0\n3,10,1\n", "header=0", "1,20\n3,10\n"},
		"numbers, target":   {"1,20,0\n3,10,1\n", "header=0", "1\t20\t0\n3\t10\t0\n"},
		"target in front":   {"0,1,20\n1,3,10\n", "header=0,target=1", "0,1,20\n1,3,10\n"},
		"names are numbers": {"0,1,label\n1,20,no\n3,10,yes\n", "header=1", "1,0\n20,1\n10,3\n"},
		"large numbers": {"a,b,y\n1700000000,20,no\n1700000002,10,yes\n", "",
			"a,b\n1700000000,20\n1700000002,10\n"},
	} {
		var o data.Options
		must.Do(t, data.Set("csv", &o, []string{strings.TrimSuffix("standardise=1,"+test.set, ",")}))
		path := filepath.Join(t.TempDir(), "train.csv")
		writeFile(t, path, []byte(test.table))
		writeFile(t, filepath.Join(filepath.Dir(path), "test.csv"), []byte(test.table))
		set, _, err := data.Open("csv", filepath.Dir(path), o)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		inputs := filepath.Join(t.TempDir(), "inputs.csv")
		writeFile(t, inputs, []byte(test.inputs))
		x := must.Get(data.NewInputs(set.Info(), nil, []string{inputs}))(t)
		var batch data.Batch
		must.Do(t, x.Fill(&batch, []int{0, 1}))
		if !slices.Equal(batch.Input.Float32, rows) {
			t.Errorf("%s: %v, want %v", name, batch.Input.Float32, rows)
		}
		writeFile(t, inputs, []byte("c,d,e,f\n1,2,3,4\n"))
		_, err = data.NewInputs(set.Info(), nil, []string{inputs})
		wantError(t, err, "inputs.csv: line 1: it has 4 columns; want ")
	}
}
