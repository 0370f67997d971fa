package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"penstock.example/internal/strict"
)

// Machine is the devices and links to train on.
type Machine struct {
	Devices []Device // at least one; stages are placed in this order
	// Links: the last one that joins two devices counts. Without a link a transfer costs nothing.
	Links []Link
}

// Device is a device of a machine.
type Device struct {
	Name  string // unique
	Bytes int64  // the most that it may hold; 0 is no limit. Stages that share it have equal parts.
	// Threads is its number of threads; 0 is 1. If it is a multiple of the profile's threads, stages may
	// share the device. They do if the machine has too few devices.
	Threads int
	Speed   float64 // relative to the measured device; 0 is 1
}

// Link is the cost of transfers between two devices, in either direction.
type Link struct {
	From, To  string        // names of devices; "" is any
	Latency   time.Duration // from when a value leaves until its first byte arrives
	Bandwidth float64       // bytes a second; 0 is no bound
}

func (d Device) threads() int { return max(d.Threads, 1) }

// check returns an *arg.ConfigError for a machine that makes no sense.
func (m Machine) check() error {
	if len(m.Devices) == 0 {
		return refuse("Devices", 0, "the machine has none", "want at least one")
	}
	known, threads := map[string]bool{}, 0
	named := func(name string) bool { return name == "" || known[name] }
	for i, d := range m.Devices {
		switch {
		case d.Name == "" || known[d.Name]:
			return refuse("Devices", d.Name, fmt.Sprintf("device %d has this name", i),
				"want a name that no other has")
		case d.Bytes < 0:
			return refuse("Devices", d.Bytes, "the bytes of "+d.Name, "want 1 or more, or 0 for no limit")
		case d.Threads < 0 || d.Threads > maxThreads-threads:
			return refuse("Devices", d.Threads, "the threads of "+d.Name,
				fmt.Sprintf("want 1 or more, and at most %d of all devices", maxThreads))
		case d.Speed != 0 && !(d.Speed >= 1/maxSpeed && d.Speed <= maxSpeed):
			return refuse("Devices", d.Speed, "the speed of "+d.Name,
				"want 0.000001 to 1000000, such as 1 for that of the profile")
		}
		known[d.Name], threads = true, threads+d.threads()
	}
	for i, l := range m.Links {
		switch {
		case !named(l.From) || !named(l.To):
			return refuse("Links", fmt.Sprintf("%q and %q", l.From, l.To),
				fmt.Sprintf("what link %d joins", i), "want names of devices")
		case l.Latency < 0 || l.Latency > maxLatency:
			return refuse("Links", l.Latency, fmt.Sprintf("the latency of link %d", i),
				fmt.Sprintf("want 0 to %v", maxLatency))
		case !(l.Bandwidth >= 0) || math.IsInf(l.Bandwidth, 0):
			return refuse("Links", l.Bandwidth, fmt.Sprintf("the bandwidth of link %d", i),
				"want bytes a second")
		}
	}
	return nil
}

// transferTime returns how long bytes occupy a link, at most a day, so that sums fit an int64.
func (l Link) transferTime(bytes int64) int64 {
	if l.Bandwidth == 0 {
		return 0
	}
	return int64(min(float64(bytes)/l.Bandwidth*float64(time.Second), float64(24*time.Hour)))
}

// between returns the costs of the link between two devices, without their names.
func (m Machine) between(a, b string) (h Link) {
	if a == b {
		return h
	}
	joins := func(l Link, a, b string) bool {
		return (l.From == "" || l.From == a) && (l.To == "" || l.To == b)
	}
	for _, l := range m.Links {
		if joins(l, a, b) || joins(l, b, a) {
			h = Link{Latency: l.Latency, Bandwidth: l.Bandwidth}
		}
	}
	return h
}

// Largest returns the most bytes that a device may hold if none may hold more than limit; 0 is no
// limit.
func (m Machine) Largest(limit int64) (most int64) {
	for _, d := range m.Devices {
		bytes := LowerLimit(d.Bytes, limit)
		if bytes == 0 {
			return 0
		}
		most = max(most, bytes)
	}
	return most
}

// LowerLimit returns the lower of two limits in bytes, of which 0 is none.
func LowerLimit(a, b int64) int64 {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// Parts returns how many stages fit on the machine, each with a number of threads.
func (m Machine) Parts(threads int) (n int) {
	for _, d := range m.Devices {
		n += d.threads() / threads
	}
	return n
}

// workers returns n devices with a number of threads each. If the machine has fewer, devices are
// shared in equal parts.
func (m Machine) workers(threads, n int, limit int64) (list []worker) {
	most, left := 1, n // of a device
	for {
		all := 0
		for _, d := range m.Devices {
			all += min(d.threads()/threads, most)
		}
		if all >= n {
			break
		}
		most++
	}
	for _, d := range m.Devices {
		parts := min(d.threads()/threads, most, left)
		left -= parts
		for k := range parts {
			one := worker{name: d.Name, device: d.Name, bytes: LowerLimit(d.Bytes/int64(parts), limit),
				speed: cmp.Or(d.Speed, 1)}
			if parts > 1 {
				one.name = fmt.Sprintf("%s:%d", d.Name, k)
			}
			list = append(list, one)
		}
		if left == 0 {
			break
		}
	}
	return list
}

// pipeline returns n workers of a pipeline. A worker stands for the same worker of all replicas, and has
// the slowest speed, the fewest bytes and the slowest link of them.
func (m Machine) pipeline(all []worker, n, replicas int) (list []worker, link func(a, b worker) Link) {
	list = slices.Clone(all[:n])
	worse := func(a, b Link) Link {
		a.Latency = max(a.Latency, b.Latency)
		if b.Bandwidth > 0 && (a.Bandwidth == 0 || b.Bandwidth < a.Bandwidth) {
			a.Bandwidth = b.Bandwidth
		}
		return a
	}
	for r := 1; r < replicas; r++ {
		for k := range n {
			other, one := all[r*n+k], &list[k]
			one.speed, one.bytes = min(one.speed, other.speed), LowerLimit(one.bytes, other.bytes)
			one.reduce = worse(one.reduce, m.between(all[(r-1)*n+k].device, other.device))
		}
	}
	at := map[string]int{}
	for k, w := range list {
		at[w.name] = k
	}
	return list, func(a, b worker) (h Link) {
		for r := range replicas {
			h = worse(h, m.between(all[r*n+at[a.name]].device, all[r*n+at[b.name]].device))
		}
		return h
	}
}

// withOneMore returns the machine with one more device like its last one.
func (m Machine) withOneMore() Machine {
	d := m.Devices[len(m.Devices)-1]
	for taken := true; taken; {
		d.Name += "+"
		taken = slices.ContainsFunc(m.Devices, func(o Device) bool { return o.Name == d.Name })
	}
	return Machine{append(slices.Clone(m.Devices), d), m.Links}
}

// Bounds of a machine. Files cannot ask for too much memory, and times fit an int64.
const (
	maxDevices = 1 << 16
	maxThreads = 1 << 17 // of all devices
	maxSpeed   = 1e6
	maxLatency = time.Hour
)

// ParseMachine reads a machine from JSON:
//
//	{"version":1,
//	"devices":[{"name":"gpu","count":8,"bytes":80e9,"threads":1,"speed":1}],
//	"links":[{"latency_us":5,"bytes_per_second":25e9},
//	{"from":"gpu0","to":"gpu1","latency_us":2,"bytes_per_second":3e11}]}
//
// All fields are needed except count, from, to and links; without links transfers cost nothing. A
// device with a count stands for that many, with names that end in their numbers. The error is a
// [*strict.Error] with the path of the field, or an [*arg.ConfigError].
func ParseMachine(data []byte) (Machine, error) {
	var file struct {
		Version int `json:"version"`
		Devices []struct {
			Name    string  `json:"name"`
			Count   int     `json:"count,omitzero"`
			Bytes   float64 `json:"bytes"`
			Threads int     `json:"threads"`
			Speed   float64 `json:"speed"`
		} `json:"devices"`
		Links []struct {
			From      string  `json:"from,omitzero"`
			To        string  `json:"to,omitzero"`
			Latency   float64 `json:"latency_us"`
			Bandwidth float64 `json:"bytes_per_second"`
		} `json:"links,omitzero"`
	}
	if err := strict.Unmarshal(data, &file); err != nil {
		return Machine{}, fmt.Errorf("plan: %w", err)
	}
	wrong := func(path string, value any, want string) (Machine, error) {
		return Machine{}, fmt.Errorf("plan: %w",
			&strict.Error{Path: path, Reason: fmt.Sprintf("%v; want %s", value, want)})
	}
	if file.Version != 1 {
		return wrong("version", file.Version, "1")
	}
	var m Machine
	for i, d := range file.Devices {
		switch at := fmt.Sprintf("devices[%d].", i); {
		case d.Count < 0 || d.Count > maxDevices-len(m.Devices):
			return wrong(at+"count", d.Count, fmt.Sprintf("1 or more, and at most %d devices", maxDevices))
		case !(d.Bytes >= 1 && d.Bytes < 1<<62) || d.Bytes != math.Trunc(d.Bytes):
			return wrong(at+"bytes", d.Bytes, "a whole number, 1 or more")
		}
		for k := range max(d.Count, 1) {
			name := d.Name
			if d.Count > 0 {
				name = fmt.Sprint(name, k)
			}
			m.Devices = append(m.Devices, Device{name, int64(d.Bytes), d.Threads, d.Speed})
		}
	}
	for i, l := range file.Links {
		if !(math.Abs(l.Latency) <= micros(maxLatency)) {
			return wrong(fmt.Sprintf("links[%d].latency_us", i), l.Latency,
				fmt.Sprintf("0 to %.0f", micros(maxLatency)))
		}
		m.Links = append(m.Links, Link{l.From, l.To, time.Duration(l.Latency * float64(time.Microsecond)),
			l.Bandwidth})
	}
	return m, m.check()
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
