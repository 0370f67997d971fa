package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"penstock/internal/torchtest"
	"penstock/pipe"
)

// answering is a child that gives one answer to whatever it is asked, and the requests that reached it.
func answering(t *testing.T, answer string) (*child, <-chan map[string]any) {
	t.Helper()
	asked, ask := io.Pipe()
	answers, write := io.Pipe()
	requests := make(chan map[string]any, 10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(asked); lines.Scan(); {
			var request map[string]any
			_ = json.Unmarshal(lines.Bytes(), &request) // a request that is none has nothing in it
			requests <- request
			io.WriteString(write, answer+"\n")
		}
	}()
	t.Cleanup(func() {
		ask.Close()
		<-done
	})
	return &child{name: "torchgpipe", in: ask, out: bufio.NewReader(answers)}, requests
}

func TestOpponent(t *testing.T) {
	torchtest.Check(t)
	// An embedding of 256 tokens and 4 positions, blocks of 872, and a norm and the embedding's weight: each layer counts what it uses.
	for _, row := range []struct{ reason, answer, want string }{
		{"the same network", `{"ms": [3, 1, 2], "parameters": [2080, 872, 872, 2064]}`, ""},
		{"another network", `{"ms": [1], "parameters": [2080, 872, 872, 16]}`, "another network"},
		{"a failure there", `{"error": "RuntimeError: no"}`, "RuntimeError: no"},
	} {
		c, requests := answering(t, row.answer)
		trained, err := tinyText.trainer(context.Background(), pipe.Config{Balance: []int{1, 3}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer trained.close()
		o, err := newOpponent(c, tinyText, trained)
		if err != nil {
			t.Fatal(err)
		}
		ms, err := o.round(context.Background(), 500*time.Millisecond)
		switch {
		case row.want != "":
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("%s: got %v, want %s", row.reason, err, row.want)
			}
		case err != nil || ms != 2:
			t.Errorf("%s: got %v, %v, want the median", row.reason, ms, err)
		}
		got, _ := json.Marshal(<-requests)
		for _, want := range []string{`"model":"gpt"`, `"balance":[1,3]`, `"chunks":2`, `"checkpoint":"never"`, `"context":4`, `"input":[2,4]`, `"target":[2,256,4]`, `"tokens":256`, `"seconds":0.5`} {
			if !strings.Contains(string(got), want) {
				t.Errorf("%s: no %s in the request %s", row.reason, want, got)
			}
		}
	}
}
