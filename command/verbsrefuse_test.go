package command

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"penstock.example/torch"
)

// refusals are command lines, and a part of the line with which each is refused.
const refusals = `balance --stages 2 => want one of --costs N,N,... and --model NAME
balance --costs 1,2 => --stages N is needed
balance --costs 1,2 --stages 3 => --costs: 
balance --stages 2 --costs 1,,2 => --costs 1,,2: "", element 1: want numbers
balance --stages 2 --costs NaN,2 => element 0: want numbers from 0 to 1e100
balance --stages 2 --costs 1e308,1e308 => element 0: want numbers from 0 to 1e100
balance --stages 2 --costs 1,2 --batch 8 => --batch 8 has no effect with --costs; leave it out
balance --stages 2 --costs 1,2 --optimizer adamw => --optimizer adamw has no effect with --costs
balance --stages 2 --costs 1,2 --by size => --by size has no effect with --costs
balance --stages 2 --model resnet21 => "resnet21": did you mean
balance --stages 1000 --model gpt => --stages 1000: gpt has 58 layers
balance --stages 2 --model gpt --set depth => NAME=VALUE
balance --stages 2 --model gpt --checkpoint never,always,never => 3 policies for 2 stages
balance --stages 2 --model gpt --optimizer adam --momentum .9 --by size => adam
balance --stages 2 --model mlp --optimizer adamw => --optimizer adamw has no effect without --by size
schedule gpipe --stages 2 --chunks 2 --format csv --times f=1,i=1,w=2 => has no effect without --format grid
MLP --batch 8 --stages 2 --devices 3 => --stages and --devices: want one of the two
balance extra => unexpected argument "extra"
profile => --model NAME is needed
profile --model gpt --size 32 => gpt has
profile --model mlp --format table => "table"
profile --model mlp --out DIR => cannot be written: not a regular file but a directory
remat sovle => unknown command "sovle"
remat solve => CHAIN is missing
remat solve CHAIN => --limit SIZE is needed: most memory, as a SIZE such as 700MiB
remat solve CHAIN more --limit 1MiB => unexpected argument "more"
remat solve CHAIN --limit 0 => want more than 0
remat solve CHAIN --limit 1MiB => no plan stays under 1.0 MiB (1048576 bytes); the least is
remat solve DIR/missing.json --limit 1GiB => missing.json: no such file
remat solve BROKEN --limit 1GiB => input_bytes: -5 bytes; want 0 or more
remat curve CHAIN => --out FILE is needed
remat check CHAIN => PLAN is missing
remat check CHAIN BROKEN => input_bytes: unknown field
schedule => NAME is missing
schedule gpip --stages 2 --chunks 2 => no schedule "gpip"; did you mean gpipe?
schedule gpipe --chunks 2 => --stages P is needed
schedule zb-v --stages 2 --chunks 2 --virtual 3 => zb-v: 3 stages on each device, want 2
schedule gpipe --stages 2147483647 --chunks 2147483647 => at most 16777216 stages
schedule gpipe --stages 2 --chunks 2 --times b=1 => want times of at most 10000 together, such as
schedule gpipe --stages 2 --chunks 2 --latency 1 => --latency 1: want a time with its unit
schedule gpipe --stages 2 --chunks 2 --bandwidth 1GB => --bandwidth "1GB": want a rate such as 1.25GB/s
schedule gpipe --stages 2 --chunks 2 --bandwidth 1GB/s => want both --bandwidth and --activation
schedule compare --stages 2 --chunks 2 --times f=1,i=1,w=1 --profile CHAIN => want one of them
models resnet21 => "resnet21"; did you mean
models --set width=4 => want the NAME of a model before it
report DIR => --out FILE is needed
report DIR --out DIR/a.html => : no step of a run there; want the directory of a run
report DIR/none --out DIR/a.html => none: no step of a run there
export DIR => --out FILE is needed
export DIR --out DIR/a => no checkpoint in 
checkpoint verify DIR => no checkpoint in 
checkpoint verify CHAIN => not a directory
tokenize CHAIN --out DIR/a => --tokenizer PATH is needed
tokenize CHAIN --tokenizer CHAIN => --out FILE is needed
eval DIR/none => no checkpoint in 
predict DIR => FILE, or --prompt TEXT for a model of text, is missing
plan CHAIN --stages 2 => --batch: want the rows of a step; without them micro-batches
plan CHAIN --chunks 4 => --stages: the machine has none; want at least one
plan CHAIN --chunks 4 --stages 7 => 7 stages are more than 6 units
plan CHAIN --chunks 3 --stages 2 --batch 8 => --chunks 3: want divisors of the 8 rows
plan CHAIN --chunks 4 --stages 2 --schedule gpipe,2f2b => --schedule gpipe,2f2b: "2f2b", element 1: no
plan CHAIN --chunks 4 --stages 2 --memory-limit 1MiB => no plan keeps the limits: stage 0 on device 0 needs
plan CHAIN --chunks 1000000 --stages 2 => --chunks 1000000: want 1 to 16384
plan CHAIN --chunks 4 --machine none.json => --machine none.json: no such file
plan CHAIN --chunks 4 --stages 2 --machine ONE => 2 devices with 1 threads are wanted, and the machine has 1
plan CHAIN --chunks 4 --stages 2 --latency 2h => Links is 2h0m0s: the latency of link 0; want 0 to 1h0m0s
plan CHAIN --chunks 4 --stages 2 --optimizer adamw => --optimizer adamw has no effect with a CHAIN
plan CHAIN --chunks 4 --stages 2 --seed 3 => --seed 3 has no effect with a CHAIN; leave it out
plan CHAIN --chunks 4 --stages 2 --repeats 3 => --repeats 3 has no effect with a CHAIN
plan CHAIN --chunks 4 --stages 2 --tf32 => --tf32 true has no effect with a CHAIN
plan CHAIN --chunks 4 --stages 2 --window 9 => --window 9 has no effect with a CHAIN
plan CHAIN --chunks 4 --stages 2 --schedule gpipe,zb-v --virtual 2 => --virtual 2 has no effect with --sch
plan CHAIN --chunks 4 --stages 2 --replicas 2 => --batch: want the rows of a step
plan CHAIN --batch 8 --replicas 3 --machine ONE => --replicas 3: want divisors of the 8 rows
plan CHAIN --batch 8 --model mlp --stages 2 => want one of the two
MLP => want --batch N
MLP --batch 8 --data-set size=8 => --data-set size=8 has no effect without --data NAME
MLP --batch 8 --data text --data-dir DIR => --model mlp is for classification
MLP --batch 64 --data synthetic --data-set train=32 => --batch 64: --data synthetic has 32 samples
MLP --batch 8 --devices 0 => --devices 0: want at least 1, or names of devices
MLP --batch 8 --devices gpu:0 => --devices gpu:0: unknown device "gpu:0": want cpu:N or cuda:N, or a number
MLP --batch 8 --devices cpu:0,cpu => --devices cpu:0,cpu:0: cpu:0 is there twice; want each device once
MLP --batch 8 --devices cpu:0,cuda:0 => a CPU and a GPU are not planned together
MLP --batch 8 --devices cuda:GONE => here cannot use cuda:GONE
MLP --batch 8 --devices 2 --latency 1s => --latency 1s has no effect without a CHAIN
plan CHAIN --chunks 4 --machine ONE --latency 1s => --machine has devices and links
AUTO --balance 3,3 => --balance 3,3: --plan auto decides it
AUTO --checkpoint always => --checkpoint always: --plan auto decides it
AUTO --replicas 2 => --replicas 2: --plan auto decides it
AUTO --schedule auto => --schedule auto with --plan auto
AUTO --chunks 7 => --chunks 7: want a divisor of the 64 rows
AUTO --memory-limit 20KiB => --memory-limit 20480: parameters, gradients and the optimizer's state
AUTO --devices cpu:0,cpu:0 => cpu:0 is there twice
AUTO --devices cpu:0 --rank 0 --processes 2 --rendezvous localhost:29500 => several processes have CPU
train --plan auto --data synthetic => --model NAME is needed
train --plan DIR/none --data synthetic => no such file
`

// Bad input is refused with one line that names it and says what to give instead, and nothing is written.
func TestVerbsRefuse(t *testing.T) {
	dir := t.TempDir()
	gone := fmt.Sprint(torch.CUDADevices())
	names := strings.NewReplacer("CHAIN", chainFile(t), "DIR", dir, "MLP", "plan --model mlp",
		"AUTO", "train --model mlp --data synthetic --batch 64 --steps 1 --plan auto", "ONE",
		textFile(t, "machine.json",
			`{"version":1,"devices":[{"name":"a","bytes":1e9,"threads":1,"speed":1}]}`),
		"BROKEN", textFile(t, "broken.json",
			`{"version":1,"input_bytes":-5,"layers":[{"name":"a","forward_us":3,"backward_us":4,
			"output_bytes":5,"saved_bytes":6,"forward_tmp_bytes":7,"backward_tmp_bytes":8}],
			"loss":{"tmp_bytes":1,"backward_us":2}}`),
		"PLAN", textFile(t, "plan.json", `{"version":1,"feasible":true,"limit_bytes":1,"peak_bytes":1,
			"time_us":1,"lower_bound_us":1,"ops":[{"op":"loss"}]}`))
	for row := range strings.Lines(refusals) {
		line, want, _ := strings.Cut(strings.TrimSpace(strings.ReplaceAll(row, "GONE", gone)), " => ")
		r := command(t, strings.Fields(names.Replace(line))...)
		if r.code != exitUsage || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 ||
			!strings.Contains(r.stderr, want) {
			t.Errorf("%s: code %d, stdout %q, stderr %q; want %q", line, r.code, r.stdout, r.stderr, want)
		}
	}
	for line, want := range map[string]string{ // what is right and has no answer
		"remat check CHAIN PLAN": "the plan does not hold: operation 0, L: the loss needs x(6)",
	} {
		refuses(t, strings.Fields(names.Replace(line)), exitFailed, want)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("refusals leave %v", left)
	}
}
