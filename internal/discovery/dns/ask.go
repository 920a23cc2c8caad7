package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"
)

const (
	// askTimeout bounds one question to one server, askTries how often all are asked.
	askTimeout = 2 * time.Second
	askTries   = 2
	// udpSize is the largest answer over UDP: one that no network cuts in pieces.
	udpSize = 1232
	// maxServers and maxSearch bound what is used of /etc/resolv.conf.
	maxServers = 3
	maxSearch  = 16
	// unsaidTTL is how long an answer is good for that has no records to say so.
	unsaidTTL = 30 * time.Second
	// resolvConf is where the servers stand.
	resolvConf = "/etc/resolv.conf"
)

// asker asks name servers.
type asker struct {
	server string // HOST or HOST:PORT; empty: those of conf
	conf   string // path of a resolv.conf
}

// answer is the addresses of a name, in order, and how long they are good for.
type answer struct {
	addresses []netip.Addr
	ttl       time.Duration
	// cut: there are more addresses, which did not fit into the answer.
	cut bool
}

// ask returns the addresses of one family of a name. A name that does not exist, or has
// no such addresses, has none: that is no error.
func (a asker) ask(ctx context.Context, name string, v6 bool) (answer, error) {
	conf, err := a.settings()
	if err != nil {
		return answer{}, err
	}
	qtype := dns.TypeA
	if v6 {
		qtype = dns.TypeAAAA
	}
	empty := answer{ttl: maxPause}
	var failed error
	list := conf.NameList(name)
	for _, full := range list[:min(len(list), maxSearch)] {
		got, err := a.askOne(ctx, conf, full, qtype)
		switch {
		case err != nil:
			failed = err
		case len(got.addresses) > 0:
			return got, nil
		default:
			empty.ttl = min(empty.ttl, got.ttl)
		}
	}
	return empty, failed
}

// settings reads the servers and search domains, each time: they change too.
func (a asker) settings() (*dns.ClientConfig, error) {
	conf, err := dns.ClientConfigFromFile(a.conf)
	if a.server == "" {
		switch {
		case err != nil:
			return nil, fmt.Errorf("cannot read the name servers: %w", err)
		case len(conf.Servers) == 0:
			return nil, fmt.Errorf("%s names no server", a.conf)
		}
		conf.Servers = conf.Servers[:min(len(conf.Servers), maxServers)]
		return conf, nil
	}
	if err != nil {
		conf = &dns.ClientConfig{Ndots: 1}
	}
	host, port, err := net.SplitHostPort(a.server)
	if err != nil {
		host, port = a.server, "53"
	}
	conf.Servers, conf.Port = []string{host}, port
	return conf, nil
}

// askOne asks the servers in order for a full name.
func (a asker) askOne(ctx context.Context, conf *dns.ClientConfig, name string, qtype uint16) (got answer, err error) {
	for range askTries {
		for _, server := range conf.Servers {
			if got, err = exchange(ctx, net.JoinHostPort(server, conf.Port), name, qtype); err == nil || ctx.Err() != nil {
				return got, err
			}
		}
	}
	return got, fmt.Errorf("cannot ask for %s: %w", trim(name), err)
}

// exchange asks one server.
func exchange(ctx context.Context, server, name string, qtype uint16) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	question := new(dns.Msg)
	question.SetQuestion(dns.Fqdn(name), qtype)
	question.SetEdns0(udpSize, false)
	reply, err := send(ctx, "udp", server, question)
	if err == nil && reply.Rcode == dns.RcodeFormatError {
		question.Extra = nil // it does not know EDNS
		reply, err = send(ctx, "udp", server, question)
	}
	if err == nil && reply.Truncated {
		// Without TCP there is what the datagram holds.
		if whole, err := send(ctx, "tcp", server, question); err == nil {
			reply = whole
		}
	}
	if err != nil {
		return answer{}, err
	}
	return read(reply, question)
}

func send(ctx context.Context, network, server string, question *dns.Msg) (*dns.Msg, error) {
	c := dns.Client{Net: network, Timeout: askTimeout, UDPSize: udpSize}
	reply, _, err := c.ExchangeContext(ctx, question, server)
	return reply, err
}

// read takes the addresses out of a reply.
func read(reply, question *dns.Msg) (answer, error) {
	asked := question.Question[0]
	if len(reply.Question) != 1 || reply.Question[0].Qtype != asked.Qtype || dns.CanonicalName(reply.Question[0].Name) != dns.CanonicalName(asked.Name) {
		return answer{}, errors.New("the answer is to another question")
	}
	if reply.Rcode != dns.RcodeSuccess && reply.Rcode != dns.RcodeNameError {
		return answer{}, fmt.Errorf("the name server answers %s", dns.RcodeToString[reply.Rcode])
	}
	got, said := answer{ttl: unsaidTTL, cut: reply.Truncated}, false
	lives := func(seconds uint32) {
		d := time.Duration(seconds) * time.Second
		if !said || d < got.ttl {
			got.ttl, said = d, true
		}
	}
	for _, record := range reply.Answer {
		var ip net.IP
		switch r := record.(type) {
		case *dns.A:
			ip = r.A
		case *dns.AAAA:
			ip = r.AAAA
		case *dns.CNAME: // the addresses of what it leads to follow
			lives(r.Hdr.Ttl)
			continue
		default:
			continue
		}
		if address, ok := netip.AddrFromSlice(ip); ok && record.Header().Rrtype == asked.Qtype {
			got.addresses = append(got.addresses, address.Unmap())
			lives(record.Header().Ttl)
		}
	}
	if len(got.addresses) == 0 && got.cut {
		return answer{}, errors.New("the answer is cut and has no address")
	}
	if len(got.addresses) == 0 {
		for _, record := range reply.Ns {
			if soa, ok := record.(*dns.SOA); ok {
				lives(min(soa.Hdr.Ttl, soa.Minttl))
			}
		}
	}
	slices.SortFunc(got.addresses, netip.Addr.Compare)
	got.addresses = slices.Compact(got.addresses)
	return got, nil
}
