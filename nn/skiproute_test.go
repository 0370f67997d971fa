package nn_test

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/nn"
)

// plainly declares skips and is never run.
func plainly(stashes, pops string, children ...nn.Layer) *lambda {
	return declaring(stashes, pops, nil, children...)
}

func problems(t *testing.T, model *nn.Sequential) []string {
	t.Helper()
	err := nn.VerifySkips(model)
	if err == nil {
		return nil
	}
	var e *nn.SkipError
	if !errors.As(err, &e) {
		t.Fatalf("got %T", err)
	}
	if want := "nn: the model's skip connections do not match:\n  * " + strings.Join(e.Problems, "\n  * "); err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	return e.Problems
}

func TestVerifySkipsListsAllThatIsWrong(t *testing.T) {
	declaredIn := func(s *nn.Sequential) *nn.Sequential {
		s.Stashes("a")
		return s
	}
	twice := plainly("a", "")
	twice.Isolate(nn.NewNamespace())
	twice.Stashes("a") // one name, two namespaces: Stash could not tell which is meant
	for _, row := range []struct {
		reason string
		model  *nn.Sequential
		want   []string
	}{
		{"nothing declared", nn.NewSequential(nn.NewTanh()), nil},
		{"a chain", nn.NewSequential(plainly("a", ""), plainly("b", "a"), plainly("", "b a")), nil},
		{"never popped", nn.NewSequential(plainly("a", "")), []string{`"0" stashes "a", which no layer pops`}},
		{"never stashed", nn.NewSequential(plainly("", "a")), []string{`"0" pops "a", which no layer stashes`}},
		{"popped before", nn.NewSequential(plainly("", "a"), plainly("a", "")), []string{`"0" pops "a" before "1" stashes it`}},
		{"popped before and after", nn.NewSequential(plainly("", "a"), plainly("a", ""), plainly("", "a")), []string{`"0" pops "a" before "1" stashes it`}},
		{"stashed twice by one", nn.NewSequential(plainly("a a", ""), plainly("", "a")), []string{`"0" declares the stash of "a" twice`}},
		{"popped twice by one", nn.NewSequential(plainly("a", ""), plainly("", "a a")), []string{`"1" declares the pop of "a" twice`}},
		{"stashed by two", nn.NewSequential(plainly("a", ""), plainly("a", ""), plainly("", "a")),
			[]string{`"0" and "1" both stash "a"; Isolate one in a namespace of its own, with the layers that pop it`}},
		{"both in one", nn.NewSequential(plainly("a", "a")), []string{`"0" declares both the stash and the pop of "a"`}},
		{"both in one, and popped again", nn.NewSequential(plainly("a", "a"), plainly("", "a")), []string{`"0" declares both the stash and the pop of "a"`}},
		{"the names of nested layers", nn.NewSequential().Add("down", nn.NewSequential().Add("conv", plainly("a", ""))).Add("up", plainly("", "", plainly("", "b"))),
			[]string{`"up.0" pops "b", which no layer stashes`, `"down.conv" stashes "a", which no layer pops`}},
		{"a parent and its child", nn.NewSequential(plainly("a", "b", plainly("b", "a"))), nil},
		{"of two children the second first", nn.NewSequential(plainly("", "", plainly("", "a"), plainly("a", ""))), []string{`"0.0" pops "a" before "0.1" stashes it`}},
		{"all children come before the next layer", nn.NewSequential(plainly("", "a", plainly("b", "")), plainly("a", "b")), []string{`"0" pops "a" before "1" stashes it`}},
		{"a Sequential", nn.NewSequential(plainly("", "a")).Add("in", nn.NewSequential().Add("side", declaredIn(nn.NewSequential(nn.NewTanh())))),
			[]string{`"in.side" declares skips and is a Sequential, which runs layers and nothing else; declare them on one of its layers`, `"0" pops "a", which no layer stashes`}},
		{"a name in two namespaces of one module", nn.NewSequential(twice), []string{
			`"0" declares the stash of "a" twice`, `"0" stashes "a" of namespace N, which no layer pops`}},
		{"all at once", nn.NewSequential(plainly("a b b c", "x"), plainly("a d", "d"), plainly("", "e c c"), plainly("e f", "")), []string{
			`"0" declares the stash of "b" twice`,
			`"0" and "1" both stash "a"; Isolate one in a namespace of its own, with the layers that pop it`,
			`"1" declares both the stash and the pop of "d"`,
			`"2" declares the pop of "c" twice`,
			`"0" pops "x", which no layer stashes`,
			`"2" pops "e" before "3" stashes it`,
			`"0" stashes "a", which no layer pops`,
			`"0" stashes "b", which no layer pops`,
			`"3" stashes "f", which no layer pops`,
		}},
	} {
		got := problems(t, row.model)
		for i := range got {
			got[i] = withoutNumber(got[i])
		}
		if d := cmp.Diff(row.want, got); d != "" {
			t.Errorf("%s (- want, + got):\n%s", row.reason, d)
		}
	}
}

// withoutNumber makes the number of a namespace, which depends on the tests that ran before, N.
func withoutNumber(s string) string {
	return regexp.MustCompile(`namespace \d+`).ReplaceAllString(s, "namespace N")
}

func TestIsolate(t *testing.T) {
	ns := nn.NewNamespace()
	// A model of two blocks of one kind; isolate is done to the second.
	model := func(isolate func(block *lambda)) *nn.Sequential {
		block := func() *lambda { return plainly("", "", plainly("a b", ""), plainly("", "", plainly("", "a b"))) }
		second := block()
		isolate(second)
		return nn.NewSequential(block(), nn.NewSequential(second))
	}
	const both = `"0.0" and "1.0.0" both stash "a"; Isolate one in a namespace of its own, with the layers that pop it`
	for _, row := range []struct {
		reason  string
		isolate func(block *lambda)
		want    []string
	}{
		{"all, nested ones too", func(b *lambda) { b.Isolate(ns) }, nil},
		{"each by its name", func(b *lambda) { b.Isolate(ns, "a", "b") }, nil},
		{"in namespaces of their own", func(b *lambda) { b.Isolate(ns, "a"); b.Isolate(nn.NewNamespace(), "b") }, nil},
		{"the last call counts", func(b *lambda) { b.Isolate(nn.NewNamespace(), "a"); b.Isolate(ns) }, nil},
		{"one of two", func(b *lambda) { b.Isolate(ns, "b") }, []string{both}},
		{"back into the namespace of all", func(b *lambda) { b.Isolate(ns); b.Isolate(nn.Namespace{}, "a") }, []string{both}},
	} {
		if d := cmp.Diff(row.want, problems(t, model(row.isolate))); d != "" {
			t.Errorf("%s (- want, + got):\n%s", row.reason, d)
		}
	}

	half := plainly("", "a")
	half.Isolate(ns)
	got := problems(t, nn.NewSequential(plainly("a", ""), half))
	for i := range got {
		got[i] = withoutNumber(got[i])
	}
	if want := []string{`"1" pops "a" of namespace N, which no layer stashes`, `"0" stashes "a", which no layer pops`}; !slices.Equal(got, want) {
		t.Errorf("one half: got %q, want %q", got, want)
	}

	for _, row := range []struct {
		want string
		f    func()
	}{
		{`nn: Isolate: "c" is not declared; Stashes and Pops declare names`, func() { plainly("a", "", plainly("", "b")).Isolate(ns, "a", "c") }},
		{"nn: a skip needs a name", func() { plainly("", "").Stashes("") }},
	} {
		if got := recovered(row.f); got != row.want {
			t.Errorf("got %q, want %q", got, row.want)
		}
	}
	if nn.NewNamespace() == nn.NewNamespace() || nn.NewNamespace() == (nn.Namespace{}) {
		t.Error("two namespaces are one")
	}
}

func TestSkipRoutesLeadFromLayerToLayers(t *testing.T) {
	ns := nn.NewNamespace()
	key := func(name string) nn.SkipKey { return nn.SkipKey{Name: name} }
	model := nn.NewSequential(
		plainly("a", ""),
		nn.NewSequential(plainly("b", "", plainly("c", "")), isolated(ns, plainly("a", ""))), // 1 and 2
		plainly("", "a", plainly("", "a c"), plainly("", "", plainly("", "a"))),              // 3
		plainly("d", "b", plainly("", "d")),                                                  // 4
		isolated(ns, plainly("", "a")),
		plainly("", "a"),
	)
	got, err := model.SkipRoutes()
	want := []nn.SkipRoute{
		{Key: key("a"), Stash: 0, Pops: []int{3, 3, 3, 6}},
		{Key: key("b"), Stash: 1, Pops: []int{4}},
		{Key: key("c"), Stash: 1, Pops: []int{3}},
		{Key: nn.SkipKey{Namespace: ns, Name: "a"}, Stash: 2, Pops: []int{5}},
		{Key: key("d"), Stash: 4, Pops: []int{4}},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(nn.Namespace{})); err != nil || d != "" {
		t.Errorf("%v (- want, + got):\n%s", err, d)
	}
}
