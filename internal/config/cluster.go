package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/sluice-router/sluice/internal/cluster/store"
	"github.com/sluice-router/sluice/internal/workerurl"
)

// Cluster makes the process a member of a gate that several routers share.
type Cluster struct {
	URL    StoreURL `yaml:"cluster" help:"Store in which the routers of a cluster find each other, which makes this router a member: etcd://HOST:PORT,HOST:PORT (etcds with TLS), redis://HOST:PORT or valkey://HOST:PORT (rediss with TLS), or kubernetes://NAMESPACE for a Lease there. docs/cluster-stores.md has what else it may hold: user and password, files for TLS. A URL with a password is better given by the environment, which is not in the list of processes. Without it the router is alone, and every limit is its own."`
	Name   string   `yaml:"cluster_name" default:"sluice" onlywith:"cluster" help:"Name of the cluster. Routers with the same name in the same store share one gate. 1 to 63 lowercase letters, digits and -; with kubernetes:// it is the name of the Lease."`
	Listen string   `yaml:"cluster_listen" default:"127.0.0.1:0" onlywith:"cluster" help:"HOST:PORT on which to serve the other members; port 0: any free port. Other than on the loopback interface it needs cluster_secret_file or cluster_tls_cert_file."`
	// Advertise is empty for the address that is listened on. Its port may be 0.
	Advertise  string        `yaml:"cluster_advertise" defaultdoc:"the address of cluster_listen" onlywith:"cluster" help:"HOST:PORT at which the others reach this member, and its name: it should be the same after a restart. Port 0: that of cluster_listen. Required if cluster_listen is on all interfaces."`
	Secret     Secret        `yaml:"cluster_secret" flag:"-" onlywith:"cluster" help:"Secret that all members of the cluster have, 16 bytes or more: they prove to each other that they have it."`
	SecretFile string        `yaml:"cluster_secret_file" fileof:"cluster_secret" onlywith:"cluster" help:"File with the secret that all members of the cluster have, 16 bytes or more."`
	TLSCert    string        `yaml:"cluster_tls_cert_file" alias:"cluster-tls-cert" onlywith:"cluster" help:"PEM file with the certificate that this member presents to the others, for its address in cluster_advertise. Instead of cluster_secret_file."`
	TLSKey     string        `yaml:"cluster_tls_key_file" alias:"cluster-tls-key" onlywith:"cluster" help:"PEM file with its key."`
	TLSCA      string        `yaml:"cluster_tls_ca_file" alias:"cluster-tls-ca" onlywith:"cluster" help:"PEM file with the certificate authorities of the members. Whoever has a certificate from one of them can become a member, so let it be the cluster's own."`
	Lease      time.Duration `yaml:"cluster_lease_secs" default:"5" unit:"secs" range:"2:600" onlywith:"cluster" help:"How long a member that decides for all may do so without hearing from the store or from all members; and after how long one of which nothing is heard counts as lost. The same for all members."`
	Patience   time.Duration `yaml:"cluster_patience_secs" default:"5" unit:"secs" range:"2:3600" onlywith:"cluster" help:"How long a member lets requests wait while nobody decides for all, before cluster_fallback. At least cluster_lease_secs, which it follows if it is not set itself."`
	Lost       time.Duration `yaml:"cluster_lost_secs" default:"60" unit:"secs" range:"2:86400" onlywith:"cluster" help:"How long what a lost member holds, and its share, stay set aside. After that they are given to the others; the member itself has ended its older prefill requests by then."`
	Fallback   string        `yaml:"cluster_fallback" choices:"share|refuse" default:"share" onlywith:"cluster" help:"What a member does when nobody decides for all for longer than cluster_patience_secs. share: it decides alone, on its share of every limit. refuse: it answers 503 (gate_unavailable)."`
	Required   bool          `yaml:"cluster_required" default:"false" onlywith:"cluster" help:"End with an error if the store cannot be reached at the start. Without it the router starts in fallback, and joins when the store is there."`
}

// The values of Cluster.Fallback.
const (
	ClusterFallbackShare  = "share"
	ClusterFallbackRefuse = "refuse"
)

// Enabled reports whether the process is a member of a cluster.
func (c Cluster) Enabled() bool { return c.URL != "" }

// StoreURL is the URL of a store that routers find each other in. It may hold a
// password, which String hides.
type StoreURL string

// UnmarshalText reads a URL as the stores take it.
func (u *StoreURL) UnmarshalText(text []byte) error {
	if _, err := store.ParseURL(string(text)); err != nil {
		return err
	}
	*u = StoreURL(text)
	return nil
}

// Reveal is the whole URL.
func (u StoreURL) Reveal() string { return string(u) }

// String is the URL without what may be secret: user, password and settings.
func (u StoreURL) String() string {
	if parsed, err := store.ParseURL(string(u)); err == nil {
		return parsed.String()
	}
	return redactWorker(string(u))
}

// checkHostPort checks an address. The error goes on after the address.
func checkHostPort(s string, zero bool) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return errors.New("must be HOST:PORT, an IPv6 address in brackets")
	}
	if host != "" && net.ParseIP(host) == nil && !workerurl.IsHostName(host) {
		return errors.New("has no valid host")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 && !zero {
		return errors.New("has no port from 1 to 65535")
	}
	return nil
}

const (
	// minClusterSecret is the least length of the members' secret, in bytes: whoever
	// records one exchange could try shorter ones.
	minClusterSecret = 16
	worldReadable    = 0o004
)

// checkCluster refuses what cannot be a member, and options of a cluster without one.
func (l *loader) checkCluster() {
	const url = "cluster.cluster"
	c := &l.cfg.Cluster
	if !l.good(url) {
		return
	}
	if !c.Enabled() {
		schema().walk(func(o *option) {
			if o.onlyWith == "cluster" && l.isSet(o.path) && l.good(o.path) {
				l.fail(o.path, l.source(o.path), l.shownValue(o.path), "needs %s; without it this router is alone", l.named(url, l.cfg.origins[o.path]))
			}
		})
		return
	}
	const name = "cluster.cluster_name"
	if l.good(name) && !namespaceName.MatchString(c.Name) { // one rule, so that a cluster can move to another store
		l.blame(name, "must be 1 to 63 lowercase letters, digits and -, with a letter or digit at both ends")
	}
	l.checkClusterTimes()
	l.checkClusterAddresses()
	l.checkClusterTLS()
	l.checkClusterSecret()
}

// shownValue is the text of a setting, hidden if it is a secret.
func (l *loader) shownValue(path string) string {
	if schema().find(path).secret() {
		return hidden
	}
	return l.value(path)
}

func (l *loader) checkClusterTimes() {
	const lease, patience, lost = "cluster.cluster_lease_secs", "cluster.cluster_patience_secs", "cluster.cluster_lost_secs"
	c := &l.cfg.Cluster
	if l.good(lease, patience) && l.isSet(patience) && c.Patience < c.Lease {
		l.blameOrder(patience, lease, patience)
	}
	if l.good(lease, lost) && c.Lost < c.Lease {
		path := lost
		if !l.isSet(lost) {
			path = lease
		}
		l.blameOrder(path, lease, lost)
	}
}

func (l *loader) checkClusterAddresses() {
	const listen, advertise = "cluster.cluster_listen", "cluster.cluster_advertise"
	c := &l.cfg.Cluster
	if !l.good(listen, advertise) {
		return
	}
	if err := checkHostPort(c.Listen, true); err != nil {
		l.blame(listen, "%v", err)
		return
	}
	if c.Advertise != "" {
		err := checkHostPort(c.Advertise, true)
		if host, _, _ := net.SplitHostPort(c.Advertise); err == nil && isUnspecified(host) {
			err = errors.New("is no address at which others can reach this member: name one of its own")
		}
		if err != nil {
			l.blame(advertise, "%v", err)
			return
		}
	}
	host, _, _ := net.SplitHostPort(c.Listen)
	if c.Advertise == "" && isUnspecified(host) {
		l.blame(listen, "is on all interfaces, so that it needs %s: the address at which the others reach this member", l.named(advertise, l.cfg.origins[listen]))
	}
	const secret, cert = "cluster.cluster_secret_file", "cluster.cluster_tls_cert_file"
	if c.secured() || l.isSet("cluster.cluster_secret") || !l.good(secret, cert, "cluster.cluster_secret") {
		return
	}
	for _, path := range []string{listen, advertise} {
		address := l.value(path)
		if host, _, _ := net.SplitHostPort(address); address != "" && l.good(path) && !isLoopback(host) {
			l.blame(path, "is not on the loopback interface: it needs %s, or %s with its key and authority, so that nobody else becomes a member",
				l.named(secret, l.cfg.origins[path]), l.named(cert, l.cfg.origins[path]))
			return
		}
	}
}

// secured reports whether members prove to each other who they are.
func (c *Cluster) secured() bool { return c.Secret != "" || c.SecretFile != "" || c.tlsGiven() }

func (c *Cluster) tlsGiven() bool { return c.TLSCert != "" || c.TLSKey != "" || c.TLSCA != "" }

func isUnspecified(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// checkClusterTLS refuses a part of the three files, and files that do not go together.
func (l *loader) checkClusterTLS() {
	const cert, key, ca = "cluster.cluster_tls_cert_file", "cluster.cluster_tls_key_file", "cluster.cluster_tls_ca_file"
	c := &l.cfg.Cluster
	if !c.tlsGiven() || !l.good(cert, key, ca) {
		return
	}
	for _, path := range []string{cert, key, ca} {
		if !l.isSet(path) {
			for _, given := range []string{cert, key, ca} {
				if l.isSet(given) {
					l.blame(given, "needs %s as well: members prove to each other who they are", l.named(path, l.cfg.origins[given]))
					return
				}
			}
		}
	}
	if c.Secret != "" || c.SecretFile != "" {
		l.blame(cert, "does not go with a secret of the cluster (cluster_secret_file); use one of them, the same for all members")
		return
	}
	certPEM, ok1 := l.readPEM(cert, l.source(cert), c.TLSCert)
	keyPEM, ok2 := l.readPEM(key, l.source(key), c.TLSKey)
	if ok1 && ok2 {
		if _, err := tls.X509KeyPair(certPEM, keyPEM); err != nil {
			l.blame(cert, "does not go with the key in %q: %v", clip(c.TLSKey), err)
		}
	}
	if pem, ok := l.readPEM(ca, l.source(ca), c.TLSCA); ok && !x509.NewCertPool().AppendCertsFromPEM(pem) {
		l.blame(ca, "holds no certificate in PEM form")
	}
}

func (l *loader) checkClusterSecret() {
	const secret, file = "cluster.cluster_secret", "cluster.cluster_secret_file"
	c := &l.cfg.Cluster
	if c.Secret == "" || !l.good(secret, file) {
		return
	}
	path := file
	if !l.isSet(file) {
		path = secret
	}
	if len(c.Secret) < minClusterSecret {
		l.fail(path, l.source(path), "", "is a secret of less than %d bytes", minClusterSecret)
	}
	// A mounted Secret has links to its files, whose own modes count.
	if info, err := os.Stat(c.SecretFile); c.SecretFile != "" && err == nil && info.Mode().IsRegular() && info.Mode().Perm()&worldReadable != 0 {
		l.warn(path, l.source(path), "%q can be read by every user of this machine; whoever has the secret can become a member of the cluster", clip(c.SecretFile))
	}
}

// fillInCluster gives settings of the cluster that follow others their values.
func (l *loader) fillInCluster() {
	if c := &l.cfg.Cluster; !l.isSet("cluster.cluster_patience_secs") {
		c.Patience = max(c.Patience, c.Lease)
	}
}
