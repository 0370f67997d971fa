package search

import (
	"context"
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
	if h := m.between("gpu0", "gpu1"); h != (hop{2 * time.Microsecond, 1}) {
		t.Errorf("the link is %+v, want that of the two", h)
	}
	for text, want := range map[string]string{
		`{}`:                           `"version" is missing`,
		`{"version":1}`:                "the machine has none",
		`{"version":1,"devices":null}`: "the machine has none",
		`{"version":1,"devices":[{"bytes":1,"threads":1,"speed":1}]}`:                                                                                     "devices[0].name is missing",
		`{"version":1,"devices":[{"name":"a","threads":1,"speed":1}]}`:                                                                                    "devices[0].bytes is missing",
		`{"version":1,"devices":[{"name":"a","bytes":null,"threads":1,"speed":1}]}`:                                                                       "devices[0].bytes is missing",
		`{"version":1,"devices":[{"name":"a","bytes":-5,"threads":1,"speed":1}]}`:                                                                         "devices[0].bytes is -5; want 1 or more",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":0,"speed":1}]}`:                                                                          "devices[0].threads is 0",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":-1}]}`:                                                                         "devices[0].speed is -1",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1,"count":0}]}`:                                                                "devices[0].count is 0",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1,"color":0}]}`:                                                                "color",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1}],"links":[{}]}`:                                                             "links[0].latency_us is missing",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1}],"links":[{"latency_us":-1,"bytes_per_second":1}]}`:                         "links[0].latency_us is -1",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1}],"links":[{"latency_us":1,"bytes_per_second":0}]}`:                          "links[0].bytes_per_second is 0",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1}],"links":[{"from":"b","latency_us":1,"bytes_per_second":1}]}`:               "want names of devices",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1},{"name":"a","bytes":1,"threads":1,"speed":1}]}`:                             "device 1 has this name",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1}]} {}`:                                                                       "want the end of the file",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1e-320}]}`:                                                                     "devices[0].speed is 1e-320; want 0.000001 to 1000000",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1e300}]}`:                                                                      "devices[0].speed is 1e+300",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":NaN}]}`:                                                                        "no JSON",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1000000000,"speed":1}]}`:                                                                 "devices[0].threads is 1000000000; want 1 to 131072",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":100000,"speed":1,"count":2}]}`:                                                           "at most 131072 of all devices",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1,"count":60000},{"name":"b","bytes":1,"threads":1,"speed":1,"count":60000}]}`: "more than 65536 devices",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1}],"links":[{"latency_us":1e300,"bytes_per_second":1}]}`:                      "links[0].latency_us is 1e+300; want 0 to 3600000000",
		`nonsense`: "no JSON",
	} {
		if _, err := ParseMachine([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
	}
}

// Numbers at the edge of what is taken give plans, or are refused; times never overflow.
func TestExtremeMachines(t *testing.T) {
	c := seeded(1, 5)
	w := Wishes{MicroBatches: []int{4}, Schedules: []string{"gpipe", "1f1b", "zb-v"}}
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
		if r := search(t, Profile{[]Measured{{Chain: c}}}, m, w); r.Best.Step < 0 || r.LowerBound < 0 {
			t.Errorf("%+v: %v, bound %v", test, r.Best.Step, r.LowerBound)
		}
	}
	many := devices(maxDevices, 0)
	search(t, Profile{[]Measured{{Chain: c}}}, many, w)
	c.Layers[0].Forward = 1e16
	if _, err := Search(context.Background(), Profile{[]Measured{{Chain: c}}}, devices(2, 0), w); err == nil || !strings.Contains(err.Error(), "less than a year") {
		t.Errorf("a step of centuries: %v", err)
	}
}
