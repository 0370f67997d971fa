package tokenizer_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/tokenizer"
)

// The sum is that of the vocabulary and the merges, whatever files they are in.
func TestSum(t *testing.T) {
	sum := func(path string) string {
		t.Helper()
		opened := must.Get(tokenizer.Open(path))(t)
		return opened.Sum()
	}
	want := sum("testdata/tokenizer.json")
	if got := sum("testdata/vocab.json"); got != want || len(want) != 64 {
		t.Errorf("%s of vocab.json and merges.txt; want %s", got, want)
	}
	changed := func(name string, change func(text string) string) string {
		dir := t.TempDir()
		for _, file := range []string{"vocab.json", "merges.txt"} {
			content := must.Get(os.ReadFile(filepath.Join("testdata", file)))(t)
			text := string(content)
			if file == name {
				if text = change(text); text == string(content) {
					t.Fatalf("%s is as it was", name)
				}
			}
			must.Do(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o666))
		}
		return sum(dir)
	}
	ids := changed("vocab.json", strings.NewReplacer(`"!": 0,`, `"!": 1,`, `"\"": 1,`, `"\"": 0,`).Replace)
	order := changed("merges.txt", func(text string) string {
		lines := strings.Split(text, "\n")
		lines[1], lines[2] = lines[2], lines[1]
		return strings.Join(lines, "\n")
	})
	if all := slices.Compact(slices.Sorted(slices.Values([]string{want, ids, order}))); len(all) != 3 {
		t.Errorf("sums %v", all)
	}
}
