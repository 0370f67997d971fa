package pipe

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"penstock.example/torch"
)

// workers returns the worker of each stage, and the distinct devices, one for each worker, in the
// order of their first stage. Equal names in two processes are two devices.
func (cfg Config) workers() (worker []int, devices []torch.Device) {
	type owned struct {
		device     torch.Device
		rank, lane int
	}
	var distinct []owned
	for i, d := range cfg.Devices {
		o := owned{device: d}
		if cfg.Ranks != nil {
			o.rank = cfg.Ranks[i]
		}
		if cfg.lanes != nil {
			o.lane = cfg.lanes[i]
		}
		w := slices.Index(distinct, o)
		if w < 0 {
			w, distinct, devices = len(distinct), append(distinct, o), append(devices, d)
		}
		worker = append(worker, w)
	}
	return worker, devices
}

// DeviceNames are the names of the distinct devices, in the order of their first stage. If a name
// occurs in two processes, all names begin with the rank, such as rank:1/cuda:0.
func (cfg Config) DeviceNames() (names []string) {
	worker, devices := cfg.workers()
	by, number, repeated := "rank", cfg.Ranks, false
	if cfg.lanes != nil {
		by, number = "lane", cfg.lanes
	}
	for w, d := range devices {
		repeated = repeated || slices.Index(devices, d) < w
	}
	for w, d := range devices {
		name := d.String()
		if repeated {
			name = fmt.Sprintf("%s:%d/%s", by, number[slices.Index(worker, w)], name)
		}
		names = append(names, name)
	}
	return names
}

// parseDevice reads a name of DeviceNames. rank is -1 if it has none.
func parseDevice(name string) (d torch.Device, rank int, err error) {
	rank = -1
	if rest, ok := strings.CutPrefix(name, "rank:"); ok {
		number, device, _ := strings.Cut(rest, "/")
		if rank, err = strconv.Atoi(number); err != nil || rank < 0 {
			return d, rank, fmt.Errorf("pipe: device %q: want one such as rank:1/cuda:0", name)
		}
		name = device
	}
	d, err = torch.ParseDevice(name)
	return d, rank, err
}

// DefaultRanks are the ranks of stages if Config.Ranks is nil. The distinct devices are divided
// evenly among size processes. If devices are fewer than processes, the stages are divided.
func DefaultRanks(devices []torch.Device, size int) []int {
	worker, distinct := Config{Devices: devices}.workers()
	ranks := make([]int, len(devices))
	for i, w := range worker {
		if ranks[i] = w * size / len(distinct); len(distinct) < size {
			ranks[i] = i * size / len(devices)
		}
	}
	return ranks
}

func (cfg Config) isHere(stage int) bool {
	if cfg.Group == nil {
		return true
	}
	_, replica := cfg.replicas()
	return cfg.rank(stage, replica) == cfg.Group.Rank()
}

// localDevice is Stage.Device. A CPU device of another process is represented by the device of the
// same name. If a stage here uses that device, or it is a GPU, a CPU device without stages
// represents it.
func (cfg Config) localDevice(stage int) torch.Device {
	device := cfg.Devices[stage]
	if cfg.isHere(stage) {
		return device
	}
	used := device.Kind != torch.KindCPU
	for i, d := range cfg.Devices {
		used = used || d == device && cfg.isHere(i)
	}
	for i := torch.MaxCPU - 1; used && i >= 0; i-- {
		if d := torch.CPU(i); !slices.Contains(cfg.Devices, d) {
			return d
		}
	}
	return device
}
