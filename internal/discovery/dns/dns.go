// Package dns is the source of workers that are the addresses of a name in DNS. Each name
// is a source of its own, so that one that fails or is suddenly empty is judged by itself.
//
// Go's resolver says neither how long an answer is good for nor whether a name has no
// addresses or could not be asked for, so the questions are sent here, by package
// github.com/miekg/dns: to the servers of /etc/resolv.conf in order, over UDP, and again
// over TCP where the answer was cut. /etc/hosts is not looked at.
package dns

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/discovery"
	"github.com/sluice-router/sluice/internal/fleet"
)

const (
	// maxAddresses bounds the workers of one name.
	maxAddresses = 4096
	// maxPause is the longest time between two questions for a name.
	maxPause = 5 * time.Minute
	// maxRetryPause is the longest time between two questions that fail.
	maxRetryPause = time.Minute
	// maxEmptyPause is the longest time between two questions for a name that has no
	// addresses: how long that is good for is often said for names that nobody waits for.
	maxEmptyPause = 30 * time.Second
	// confirmations is how often a name is asked for again, soon, after an answer that
	// lacks addresses: it is held back, and a mistake of the server must be over before it
	// is believed.
	confirmations = 2
)

// Source is the addresses of one name. It is to be run once.
type Source struct {
	// immutable
	cfg   *config.Config
	names config.DNSWorkers
	name  string
	floor time.Duration
	hold  time.Duration // how long a drop is held back
	asker asker

	// owned by Run
	good     [2][]netip.Addr // of the last good answers, by family
	answered [2]bool         // there was one
	reported []netip.Addr    // of the last good reading, in order
	confirm  int             // how many questions are still to be asked soon
}

// New makes the sources of all names of a configuration.
func New(cfg *config.Config) ([]*Source, error) {
	var list []*Source
	for _, n := range cfg.Discovery.DNSNames {
		w, err := n.Parse()
		if err != nil {
			return nil, fmt.Errorf("%s %w", n, err)
		}
		list = append(list, &Source{
			cfg: cfg, names: w, name: fmt.Sprintf("dns:%s:%d", w.Name, w.Port), floor: cfg.Discovery.DNSInterval, hold: cfg.Discovery.SourceHold,
			asker: asker{server: cfg.Discovery.DNSServer, conf: resolvConf},
		})
	}
	return list, nil
}

// Name implements discovery.Source.
func (s *Source) Name() string { return s.name }

// Run implements discovery.Source. It reports each answer, so that one from which many
// addresses are missing is read several times.
func (s *Source) Run(ctx context.Context, report func(discovery.Reading)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	pause := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		r, ttl := s.look(ctx)
		if ctx.Err() != nil {
			return
		}
		report(r)
		pause = s.pause(r.Err != nil, ttl, pause)
		// A tenth up or down, so that routers that started together do not ask together.
		timer.Reset(pause + time.Duration((0.2*rand.Float64()-0.1)*float64(pause)))
	}
}

// pause is the time to the next question.
func (s *Source) pause(failed bool, ttl, before time.Duration) time.Duration {
	if failed {
		return min(max(2*before, s.floor), max(maxRetryPause, s.floor))
	}
	longest := maxPause
	if len(s.reported) == 0 {
		longest = maxEmptyPause
	}
	if s.confirm > 0 {
		s.confirm--
		longest = min(longest, s.hold/4)
	}
	return max(min(ttl, longest), s.floor)
}

// note keeps the addresses that are reported. If some of before are missing, the name is
// to be asked for again soon.
func (s *Source) note(addresses []netip.Addr) {
	for _, a := range s.reported {
		if _, there := slices.BinarySearchFunc(addresses, a, netip.Addr.Compare); !there {
			s.confirm = confirmations
			break
		}
	}
	s.reported = addresses
}

// The families in the order of Source.good.
var families = [2]string{config.FamilyIPv4, config.FamilyIPv6}

// look asks for the addresses of the name. ttl is how long the answer is good for.
func (s *Source) look(ctx context.Context) (r discovery.Reading, ttl time.Duration) {
	var answers [2]answer
	var errs [2]error
	wanted := [2]bool{s.names.Family != config.FamilyIPv6, s.names.Family != config.FamilyIPv4}
	done := make(chan struct{}, 2)
	for i := range families {
		go func() {
			if wanted[i] {
				answers[i], errs[i] = s.asker.ask(ctx, s.names.Name, i == 1)
			}
			done <- struct{}{}
		}()
	}
	<-done
	<-done
	ttl = maxPause
	for i := range families {
		switch {
		case !wanted[i]:
		case errs[i] == nil:
			if answers[i].cut {
				// Other addresses are in the next answer: none is missing because it is not
				// in this one.
				r.Warnings = append(r.Warnings, fmt.Sprintf("%s has more %s addresses than fit into an answer; those that were seen so far are used", s.names.Name, families[i]))
				answers[i].addresses = join(s.good[i], answers[i].addresses)
			}
			s.good[i], s.answered[i] = answers[i].addresses, true
			ttl = min(ttl, answers[i].ttl)
		default:
			ttl = 0
		}
	}
	addresses, err := s.choose(errs)
	if err != nil {
		return discovery.Reading{Err: err}, 0
	}
	for i, err := range errs {
		if err != nil {
			r.Warnings = append(r.Warnings, fmt.Sprintf("%s: its %s addresses cannot be read, the last ones stay: %s", s.names.Name, families[i], err))
		}
	}
	if usable := slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return !isHost(a) }); len(usable) < len(addresses) {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%s has %d addresses that are not those of one host, such as 0.0.0.0; they are left out", s.names.Name, len(addresses)-len(usable)))
		addresses = usable
	}
	if n := len(addresses); n > maxAddresses {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%s has %d addresses; only the first %d in order are used", s.names.Name, n, maxAddresses))
		addresses = addresses[:maxAddresses]
	}
	worker, err := s.names.Complete(s.cfg)
	if err != nil {
		return discovery.Reading{Err: err}, 0
	}
	s.note(addresses)
	r.Workers = make([]fleet.Declared, len(addresses))
	for i, a := range addresses {
		worker.URL = s.names.Scheme + "://" + net.JoinHostPort(a.String(), strconv.Itoa(s.names.Port))
		r.Workers[i] = fleet.Declared{Worker: worker, Origin: "name " + s.names.Name}
	}
	return r, ttl
}

// choose returns the addresses in order by which the name is known now. A family whose
// question failed has its last good ones; it is an error if that is all there is to say.
func (s *Source) choose(errs [2]error) ([]netip.Addr, error) {
	v4, v6 := s.good[0], s.good[1]
	switch s.names.Family {
	case config.FamilyIPv4:
		return v4, errs[0]
	case config.FamilyIPv6:
		return v6, errs[1]
	case config.FamilyBoth:
		if errs[0] != nil && errs[1] != nil {
			return nil, errs[0]
		}
		for i, err := range errs {
			if err != nil && !s.answered[i] && len(s.good[1-i]) == 0 {
				return nil, err // there may be some
			}
		}
		return slices.Concat(v4, v6), nil
	}
	switch {
	case errs[0] != nil:
		return nil, errs[0] // whether there are IPv4 addresses decides
	case len(v4) > 0:
		return v4, nil
	}
	return v6, errs[1]
}

// isHost reports whether an address is that of one host. 0.0.0.0, the answer of servers
// that block a name, would be this machine.
func isHost(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// join adds addresses to those of before, up to the bound, in order.
func join(before, now []netip.Addr) []netip.Addr {
	all := slices.Clone(before)
	for _, a := range now {
		if _, known := slices.BinarySearchFunc(before, a, netip.Addr.Compare); !known && len(all) < maxAddresses {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// trim is a name without the dot at its end.
func trim(name string) string { return strings.TrimSuffix(name, ".") }
