package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// DNSName is a name in DNS whose addresses are workers, as NAME:PORT with settings after
// commas.
type DNSName string

// maxDNSNames bounds the names: each is asked for by a goroutine of its own.
const maxDNSNames = 100

// The families of addresses of a DNSName.
const (
	FamilyAuto = "auto" // IPv4 addresses if there are any, else IPv6: an engine with both is one worker
	FamilyIPv4 = "ipv4"
	FamilyIPv6 = "ipv6"
	FamilyBoth = "both"
)

// DNSWorkers is what a DNSName says.
type DNSWorkers struct {
	Name   string // as it is asked for
	Port   int
	Scheme string // http, https, grpc or grpcs
	Family string
	// Worker has the settings of each worker; its URL is empty.
	Worker Worker
}

// UnmarshalText checks the text.
func (n *DNSName) UnmarshalText(text []byte) error {
	*n = DNSName(text)
	_, err := n.Parse()
	return err
}

var dnsName = regexp.MustCompile(`^([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.?$`)

// Parse takes the text apart. Files that it names are not read.
func (n DNSName) Parse() (w DNSWorkers, err error) {
	address, settings, more := strings.Cut(string(n), ",")
	host, port, err := net.SplitHostPort(address)
	if err != nil || !dnsName.MatchString(host) || len(host) > 254 {
		return w, errors.New("must begin with NAME:PORT, as engines.internal:30000")
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return w, errors.New("must begin with a name, not an address: a worker with a fixed address belongs to workers")
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return w, fmt.Errorf("has the port %.20q, which must be 1 to 65535", port)
	}
	w = DNSWorkers{Name: host, Port: int(number), Scheme: "http", Family: FamilyAuto}
	worker := schema().find("workers").structList
	root := reflect.ValueOf(&w.Worker).Elem()
	worker.setDefaults(root)
	if !more {
		return w, nil
	}
	seen := map[string]bool{}
	for setting := range strings.SplitSeq(settings, ",") {
		key, value, ok := strings.Cut(setting, "=")
		if !ok || value == "" || seen[key] {
			return w, fmt.Errorf("has %.60q, which must be KEY=VALUE, each key once", setting)
		}
		seen[key] = true
		if err := w.set(worker, root, key, value); err != nil {
			return w, err
		}
	}
	return w, nil
}

// set gives one setting its value.
func (w *DNSWorkers) set(worker *group, root reflect.Value, key, value string) error {
	label, isLabel := strings.CutPrefix(key, "labels.")
	switch {
	case isLabel:
		if !labelName.MatchString(label) || !labelValue.MatchString(value) || len(w.Worker.Labels) == MaxLabels {
			return fmt.Errorf("has the label %.60q, which cannot be one", label+"="+value)
		}
		if w.Worker.Labels == nil {
			w.Worker.Labels = map[string]string{}
		}
		w.Worker.Labels[label] = value
		return nil
	case key == "scheme":
		switch w.Scheme = value; value {
		case "http", "https", "grpc", "grpcs":
			return nil
		}
		return errors.New("has a scheme that is none of http, https, grpc and grpcs")
	case key == "family":
		switch w.Family = value; value {
		case FamilyAuto, FamilyIPv4, FamilyIPv6, FamilyBoth:
			return nil
		}
		return errors.New("has a family that is none of auto, ipv4, ipv6 and both")
	}
	var o *option
	worker.walk(func(each *option) {
		if each.path == key {
			o = each
		}
	})
	switch {
	case o == nil || key == "url" || o.typ == typeLabels || o.typ == typeStrings:
		return fmt.Errorf("has the setting %.60q, which is none of scheme, family, labels.NAME and those of workers that are single values", key)
	case o.secret():
		return fmt.Errorf("has %s; put the key into a file and write api_key_file=FILE", key)
	}
	if err := o.setText(root.FieldByIndex(o.index), value); err != nil {
		return fmt.Errorf("has %s=%.60s, which %w", key, value, err)
	}
	return nil
}

// checkDNS checks the names against the rest, and reads the files that they name.
func (l *loader) checkDNS() {
	const path = "discovery.discovery_dns_names"
	d := &l.cfg.Discovery
	if !l.good(path) {
		return
	}
	if len(d.DNSNames) > maxDNSNames {
		l.blame(path, "has more than %d names", maxDNSNames)
		return
	}
	from := l.cfg.origins[path]
	seen := map[string]bool{}
	for i, n := range d.DNSNames {
		at := fmt.Sprintf("%s[%d]", path, i)
		w, err := n.Parse()
		if err != nil {
			l.fail(at, from.String(), string(n), "%v", err)
			continue
		}
		key := fmt.Sprintf("%s:%d", strings.ToLower(w.Name), w.Port)
		if seen[key] {
			l.fail(at, from.String(), string(n), "is the name and port of another one")
		}
		seen[key] = true
		for _, e := range w.check(l, from) {
			message := strings.TrimPrefix(e.Path, "workers[0].") + ": " + e.Message
			l.fail(at, from.String(), string(n), "%s", message)
		}
	}
	if s := d.DNSServer; s != "" && l.good("discovery.discovery_dns_server") {
		host := s
		if h, _, err := net.SplitHostPort(s); err == nil {
			host = h
		}
		if host == "" || strings.ContainsAny(host, " /") {
			l.blame("discovery.discovery_dns_server", "must be HOST or HOST:PORT")
		}
	}
}

// check finds what is wrong with the workers of a name.
func (w *DNSWorkers) check(l *loader, from Origin) Errors {
	_, errs := w.complete(l.cfg, l.readFile, from)
	return errs
}

// Complete is the settings of each worker with what the files say that they name, and
// what the configuration says for all workers.
func (w *DNSWorkers) Complete(cfg *Config) (Worker, error) {
	worker, errs := w.complete(cfg, readRegular, Origin{})
	if len(errs) > 0 {
		return worker, errs
	}
	return worker, nil
}

func (w *DNSWorkers) complete(cfg *Config, read ReadFile, from Origin) (Worker, Errors) {
	sub := &loader{cfg: &Config{Fleet: cfg.Fleet, origins: map[string]Origin{}}, readFile: read, bad: map[string]bool{}}
	sub.root = reflect.ValueOf(sub.cfg).Elem()
	worker := w.Worker
	worker.URL = fmt.Sprintf("%s://%s:%d", w.Scheme, strings.TrimSuffix(w.Name, "."), w.Port)
	sub.cfg.Workers, sub.workers = []Worker{worker}, []Origin{from}
	sub.resolveSecretFiles()
	sub.checkWorkers()
	worker = sub.cfg.Workers[0]
	worker.URL = ""
	if worker.ModelID == "" {
		worker.ModelID = cfg.Fleet.ModelID
	}
	if (w.Scheme == "https" || w.Scheme == "grpcs") && worker.TLS.ServerName == "" {
		worker.TLS.ServerName = strings.TrimSuffix(w.Name, ".") // its URL has an address
	}
	return worker, sub.errs
}
