package arg_test

import (
	"context"
	"testing"

	"penstock.example/internal/arg"
)

func TestMissing(t *testing.T) {
	var pointer *int
	var function func()
	var list []int
	for name, row := range map[string]struct {
		v    any
		want bool
	}{
		"nothing": {nil, true}, "a nil pointer": {pointer, true}, "a nil function": {function, true}, "a nil slice": {list, false},
		"a pointer": {new(int), false}, "a function": {func() {}, false}, "an empty slice": {[]int{}, false}, "a number": {0, false}, "a struct": {struct{}{}, false},
	} {
		if got := arg.Missing(row.v); got != row.want {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

func TestMessages(t *testing.T) {
	if err := arg.Given(new(int), "x: the y", "a z"); err != nil {
		t.Error(err)
	}
	if err := arg.Context(context.Background(), "x"); err != nil {
		t.Error(err)
	}
	var none context.Context
	if err := arg.Context(none, "x"); err == nil || err.Error() != "x: the context is nil; want context.Background() where nothing is to end the call" {
		t.Errorf("got %v", err)
	}
	defer func() {
		if got := recover(); got != "x: the y is nil; want a z" {
			t.Errorf("got %v", got)
		}
	}()
	arg.Must(nil, "x: the y", "a z")
}
