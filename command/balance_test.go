package command

import (
	"encoding/json"
	"strings"
	"testing"

	noerr "penstock.example/internal/must"
	"penstock.example/models"
)

func TestBalanceOfCosts(t *testing.T) {
	for _, test := range []struct{ costs, stages, want string }{
		{"4,2,2,2,2,4,6", "3",
			`{"balance":[3,3,1],"bottleneck":8,"stages":[{"cost":8},{"cost":8},{"cost":6}]}`},
		{"0.5, 1.25,0", "2", `{"balance":[1,2],"bottleneck":1.25,"stages":[{"cost":0.5},{"cost":1.25}]}`},
	} {
		r := must(t, "balance", "--costs", test.costs, "--stages", test.stages, "--format", "json")
		if r.stdout != test.want+"\n" || r.stderr != "" {
			t.Errorf("--costs %s: got %s, want %s; stderr %q", test.costs, r.stdout, test.want, r.stderr)
		}
	}
}

// Costs have no names, so there are no columns for them.
func TestBalanceOfCostsHasNoNames(t *testing.T) {
	text := must(t, "balance", "--costs", "1,2", "--stages", "2").stdout
	want := "--balance 1,1\n\nSTAGE  LAYERS  COST  OF BOTTLENECK\n0      1       1     50 %\n"
	if !strings.HasPrefix(text, want) {
		t.Errorf("%s\nwant\n%s", text, want)
	}
}

// decode reads one line of JSON strictly.
func decode(t *testing.T, stdout string, into any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil || d.More() || strings.Count(stdout, "\n") != 1 {
		t.Fatalf("%q: %v", stdout, err)
	}
}

// balanced is the JSON of a balance of resnet20, of which this is true of any: all layers are there, and the
// bottleneck is the greatest cost.
func balanced(t *testing.T, args ...string) balanceLine {
	t.Helper()
	var line balanceLine
	decode(t, must(t, with([]string{"balance", "--format", "json", "--model", "resnet20", "--set", "width=4",
		"--stages", "2", "--batch", "8", "--chunks", "4", "--repeats", "1"}, args...)...).stdout, &line)
	m := noerr.Get(models.New("resnet20", models.Options{Width: 4}))(t)
	layers, most := m.Layers(), 0.0
	for i, s := range line.Stages {
		n := line.Balance[i]
		if s.First != layers[0].Name || s.Last != layers[n-1].Name || s.Cost <= 0 {
			t.Errorf("stage %d of %v: %+v", i, line.Balance, s)
		}
		layers, most = layers[n:], max(most, s.Cost)
	}
	if len(layers) != 0 || most != line.Bottleneck {
		t.Errorf("%d layers are left; bottleneck %v of %v", len(layers), line.Bottleneck, most)
	}
	return line
}

// By time and by size more recomputation costs more, and less; the optimizer's state costs bytes.
func TestBalanceOfAModel(t *testing.T) {
	setClock(t, steady)
	never, always := balanced(t, "--checkpoint", "never"), balanced(t, "--checkpoint", "always")
	if never.Unit != "s" || never.Bottleneck >= always.Bottleneck {
		t.Errorf("never takes %v %s, always %v", never.Bottleneck, never.Unit, always.Bottleneck)
	}
	size := func(args ...string) float64 { return balanced(t, with(args, "--by", "size")...).Bottleneck }
	mixed := size("--checkpoint", "never,always")
	if never, always := size("--checkpoint", "never"), size("--checkpoint", "always"); never < mixed ||
		mixed < always || never == always {
		t.Errorf("never takes %v bytes, mixed %v, always %v", never, mixed, always)
	}
	if with, without := size("--optimizer", "adamw"), size("--momentum", "0"); with <= without {
		t.Errorf("with state %v bytes, without %v", with, without)
	}
	text := must(t, "balance", "--model", "mlp", "--stages", "2", "--batch", "8", "--repeats", "1").stdout
	if !strings.HasPrefix(text, "--balance ") || !strings.Contains(text, "\nSTAGE") ||
		!strings.Contains(text, "100 %") {
		t.Errorf("got:\n%s", text)
	}
}
