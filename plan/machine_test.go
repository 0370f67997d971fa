package plan

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseMachine(t *testing.T) {
	m, err := ParseMachine([]byte(`{"version":1,"devices":[{"name":"gpu","count":2,"bytes":80,"threads":1,"speed":1.5}],"links":[{"latency_us":5,"bytes_per_second":25e9},{"from":"gpu1","to":"gpu0","latency_us":2,"bytes_per_second":1}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Devices) != 2 || m.Devices[1] != (Device{"gpu1", 80, 1, 1.5}) {
		t.Errorf("devices are %+v", m.Devices)
	}
	if h := m.between("gpu0", "gpu1"); h != (Link{Latency: 2 * time.Microsecond, Bandwidth: 1}) {
		t.Errorf("the link is %+v, want that of the two", h)
	}
	for _, whole := range []string{"80000000000", "80e9", "8.0E+10"} {
		m, err := ParseMachine([]byte(`{"version":1,"devices":[{"name":"gpu","bytes":` + whole +
			`,"threads":1,"speed":1}]}`))
		if err != nil || m.Devices[0].Bytes != 80e9 {
			t.Errorf("bytes of %s: %+v, %v", whole, m, err)
		}
	}
	for text, want := range map[string]string{
		`{}`:                         `"version" is missing`,
		`{"version":2,"devices":[]}`: `version: 2; want 1`,
		`{"version":1,"devices":[]}`: `the machine has none`,
		`{"version":1,"devices":[{"bytes":1,"threads":1,"speed":1}]}`:                           `"name" is missing`,
		`{"version":1,"devices":[{"name":"","bytes":1,"threads":1,"speed":1}]}`:                 `want a name`,
		`{"version":1,"devices":[{"name":"a","bytes":1.5,"threads":1,"speed":1}]}`:              `devices[0].bytes: 1.5; want a whole number`,
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1000000000,"speed":1}]}`:       `at most 131072`,
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1e300}]}`:            `want 0.000001 to 1000000`,
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1,"count":100000}]}`: `devices[0].count: 100000`,
		`{"version":1,"devices":[{"name":"a","byte":1}]}`:                                       `devices[0].byte: unknown field`,
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1},` +
			`{"name":"a","bytes":1,"threads":1,"speed":1}]}`: `want a name that no other has`,
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1}],` +
			`"links":[{"latency_us":-1,"bytes_per_second":1}]}`: `the latency of link 0`,
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1}],` +
			`"links":[{"from":"b","latency_us":1,"bytes_per_second":1}]}`: `want names of devices`,
	} {
		if _, err := ParseMachine([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
	}
}

// Numbers at the edge of what is taken give plans, or are refused; times never overflow.
func TestExtremeMachines(t *testing.T) {
	c := seeded(1, 5)
	w := Options{MicroBatches: []int{4}, Schedules: []string{"gpipe", "1f1b", "zb-v"}}
	for _, test := range []struct {
		device Device
		link   Link
	}{
		{Device{Speed: 1e-6}, Link{Latency: maxLatency, Bandwidth: 1e-300}},
		{Device{Speed: 1e6}, Link{Bandwidth: 1e300}},
		{Device{Threads: maxThreads}, Link{}},
	} {
		m := Machine{Links: []Link{test.link}}
		for _, name := range []string{"a", "b"} {
			if d := test.device; d.Threads == 0 || name == "a" {
				d.Name = name
				m.Devices = append(m.Devices, d)
			}
		}
		if r := search(t, Profile{[]Costs{{Chain: c}}}, m, w); r.Best.Step < 0 || r.LowerBound < 0 {
			t.Errorf("%+v: %v, bound %v", test, r.Best.Step, r.LowerBound)
		}
	}
	many := devices(maxDevices, 0)
	search(t, Profile{[]Costs{{Chain: c}}}, many, w)
}

// A device is shared by as few stages as there have to be, and its bytes are theirs in equal parts.
func TestDevicesAreSharedByAsFewAsThereAre(t *testing.T) {
	m := Machine{Devices: []Device{{Name: "a", Bytes: 1200, Threads: 8},
		{Name: "b", Bytes: 900, Threads: 2}, {Name: "c", Bytes: 600, Threads: 1}}}
	for _, test := range []struct {
		threads, n int
		want       []worker
	}{
		{1, 1, []worker{{name: "a", bytes: 1200}}},
		{1, 3, []worker{{name: "a", bytes: 1200}, {name: "b", bytes: 900}, {name: "c", bytes: 600}}},
		{1, 4, []worker{{name: "a:0", bytes: 600}, {name: "a:1", bytes: 600}, {name: "b:0", bytes: 450},
			{name: "b:1", bytes: 450}}},
		{1, 6, []worker{{name: "a:0", bytes: 400}, {name: "a:1", bytes: 400}, {name: "a:2", bytes: 400},
			{name: "b:0", bytes: 450}, {name: "b:1", bytes: 450}, {name: "c", bytes: 600}}},
		{2, 2, []worker{{name: "a", bytes: 1200}, {name: "b", bytes: 900}}},
		{2, 5, []worker{{name: "a:0", bytes: 300}, {name: "a:1", bytes: 300}, {name: "a:2", bytes: 300},
			{name: "a:3", bytes: 300}, {name: "b", bytes: 900}}},
		{8, 1, []worker{{name: "a", bytes: 1200}}},
	} {
		var got []worker
		for _, w := range m.workers(test.threads, test.n, 0) {
			got = append(got, worker{name: w.name, bytes: w.bytes})
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%d stages of %d threads: %+v, want %+v", test.n, test.threads, got, test.want)
		}
	}
}
