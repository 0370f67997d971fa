package group

import (
	"context"
	"fmt"
	"net"
	"time"
)

// listenOn is the address of this machine that rank 0 listens on: that of the interface if there is
// one, the store's own if this machine has it, or the one that leads there.
func listenOn(ctx context.Context, c Config) (net.IP, error) {
	if c.Interface != "" {
		return addressOf(c.Interface)
	}
	if ip, err := ownAddress(ctx, c); ip != nil || err != nil {
		return ip, err
	}
	// Nothing is sent: this asks for the route.
	route, err := net.Dial("udp", c.Address)
	if err != nil {
		return nil, fmt.Errorf("group: no interface of this machine leads to %s: %w", c.Address, err)
	}
	defer func() { _ = route.Close() }()
	return route.LocalAddr().(*net.UDPAddr).IP, nil
}

// ownAddress is the first address of rank 0's host that an interface of this machine has, or nil.
func ownAddress(ctx context.Context, c Config) (net.IP, error) {
	host, _, _ := net.SplitHostPort(c.Address)
	all, err := addressesOf(ctx, c, host)
	if err != nil {
		return nil, err
	}
	mine, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("group: %w", err)
	}
	for _, a := range all {
		for _, m := range mine {
			if n, ok := m.(*net.IPNet); ok && (n.IP.Equal(a) || a.IsLoopback() && n.Contains(a)) {
				return a, nil
			}
		}
	}
	return nil, nil
}

// addressesOf waits until rank 0's host has addresses.
func addressesOf(ctx context.Context, c Config, host string) ([]net.IP, error) {
	defer whenLong(func() {
		c.log().Info("group: rank 0 looks up its address, for which there is no such host yet", "at", c.Address, "for", c.Timeout)
	})()
	all, last := lookUp(ctx, host)
	if last == nil {
		return all, nil
	}
	why := context.Cause(ctx)
	if why == errTimeout {
		return nil, fmt.Errorf("group: the host where rank 0 is to be has no address within %v: %w; want an address or a name of rank 0's machine (MASTER_ADDR or --rendezvous), or more time (--join-timeout)", c.Timeout, last)
	}
	return nil, fmt.Errorf("group: the host where rank 0 is to be has no address: %w; last: %w", why, last)
}

// lookUp waits until a host has addresses. If ctx ends first it returns the error of the last search that ctx has not cut
// short.
func lookUp(ctx context.Context, host string) ([]net.IP, error) {
	var last error
	for {
		ips, err := net.DefaultResolver.LookupIP(ctx, "ip", host)
		if err == nil {
			return ips, nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return nil, last
		case <-time.After(lookAgain):
		}
	}
}

// addressOf is an address of an interface, of IPv4 if it has one.
func addressOf(name string) (net.IP, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("group: the interface %s: %w", name, err)
	}
	all, err := i.Addrs()
	if err != nil {
		return nil, fmt.Errorf("group: the interface %s: %w", name, err)
	}
	var found net.IP
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		if !ok || n.IP.IsLinkLocalUnicast() {
			continue
		}
		if n.IP.To4() != nil {
			return n.IP, nil
		}
		found = n.IP
	}
	if found == nil {
		return nil, fmt.Errorf("group: the interface %s has no address; want one that the other members reach", name)
	}
	return found, nil
}
