package search

import (
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
		`{"version":1,"devices":[{"bytes":1,"threads":1,"speed":1}]}`:                                                                       "devices[0].name is missing",
		`{"version":1,"devices":[{"name":"a","threads":1,"speed":1}]}`:                                                                      "devices[0].bytes is missing",
		`{"version":1,"devices":[{"name":"a","bytes":null,"threads":1,"speed":1}]}`:                                                         "devices[0].bytes is missing",
		`{"version":1,"devices":[{"name":"a","bytes":-5,"threads":1,"speed":1}]}`:                                                           "devices[0].bytes is -5; want 1 or more",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":0,"speed":1}]}`:                                                            "devices[0].threads is 0",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":-1}]}`:                                                           "devices[0].speed is -1",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1,"count":0}]}`:                                                  "devices[0].count is 0",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1,"color":0}]}`:                                                  "color",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1}],"links":[{}]}`:                                               "links[0].latency_us is missing",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1}],"links":[{"latency_us":-1,"bytes_per_second":1}]}`:           "links[0].latency_us is -1",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1}],"links":[{"latency_us":1,"bytes_per_second":0}]}`:            "links[0].bytes_per_second is 0",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1}],"links":[{"from":"b","latency_us":1,"bytes_per_second":1}]}`: "want names of devices",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1},{"name":"a","bytes":1,"threads":1,"speed":1}]}`:               "device 1 has this name",
		`{"version":1,"devices":[{"name":"a","bytes":1,"threads":1,"speed":1}]} {}`:                                                         "want the end of the file",
		`nonsense`: "no JSON",
	} {
		if _, err := ParseMachine([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
	}
}
