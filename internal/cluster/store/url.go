package store

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
)

// URL says which coordinator keeps the record and how it is reached:
//
//	etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…]       etcds:// with TLS
//	redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]              rediss:// with TLS
//	valkey://…, valkeys://…                                 the same
//	kubernetes://[NAMESPACE]
//
// Settings follow behind a question mark: password-file, and with TLS ca (a file of
// authorities), cert and key (files of the client's own certificate), and server-name.
type URL struct {
	Kind           Kind
	Scheme         string   // as it was written: "valkeys"
	Hosts          []string // HOST:PORT each; none for Kubernetes
	User, Password string
	PasswordFile   string // read at each connection, instead of Password
	Database       int    // Redis
	Namespace      string // Kubernetes; "" is that of the pod, or of the kubeconfig
	TLS            bool
	CA, Cert, Key  string // files, read at each connection; "" for none
	ServerName     string // in the coordinator's certificate; "" is the host
}

// Kind is a kind of coordinator.
type Kind string

// The kinds of coordinators.
const (
	Etcd       Kind = "etcd"
	Redis      Kind = "redis"
	Kubernetes Kind = "kubernetes"
)

var schemes = map[string]struct {
	kind Kind
	tls  bool
}{
	"etcd": {Etcd, false}, "etcds": {Etcd, true},
	"redis": {Redis, false}, "rediss": {Redis, true},
	"valkey": {Redis, false}, "valkeys": {Redis, true},
	"kubernetes": {Kubernetes, false},
}

const knownSchemes = "etcd://HOST:PORT,…, redis://HOST:PORT, valkey://HOST:PORT or kubernetes://NAMESPACE; etcds://, rediss:// and valkeys:// with TLS"

// maxHosts bounds the endpoints of one URL.
const maxHosts = 16

// ParseURL reads a URL. No error quotes it, since it may have a password. Files that it
// names are not looked at.
func ParseURL(text string) (URL, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	known, is := schemes[scheme]
	if !ok || !is {
		return URL{}, errors.New("the coordinator is to be " + knownSchemes)
	}
	u := URL{Kind: known.kind, Scheme: scheme, TLS: known.tls}
	rest, query, _ := strings.Cut(rest, "?")
	if strings.ContainsAny(rest, "# \t\r\n") || strings.Contains(query, "#") {
		return URL{}, errors.New("a space, or a # that is not written %23, in the URL of the coordinator")
	}
	userinfo := ""
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		userinfo, rest = rest[:i], rest[i+1:]
	}
	hosts, path, _ := strings.Cut(rest, "/")
	for _, err := range []error{u.setUser(userinfo), u.setHosts(hosts), u.setPath(path), u.setQuery(query)} {
		if err != nil {
			return URL{}, err
		}
	}
	return u, nil
}

func (u *URL) setUser(text string) error {
	if text == "" {
		return nil
	}
	name, password, _ := strings.Cut(text, ":")
	var err, err2 error
	u.User, err = url.PathUnescape(name)
	u.Password, err2 = url.PathUnescape(password)
	if err != nil || err2 != nil || strings.ContainsAny(password, "/@") {
		return errors.New("user and password in the URL of the coordinator: write what is no letter or digit as %XX")
	}
	if u.Kind == Kubernetes {
		return errors.New("kubernetes:// has no user: the credentials are those of the pod or the kubeconfig")
	}
	return nil
}

func (u *URL) setHosts(text string) error {
	if u.Kind == Kubernetes {
		if text != "" && CheckName(text) != nil {
			return fmt.Errorf("kubernetes://%.80s: this is no name of a namespace", text)
		}
		u.Namespace = text
		return nil
	}
	port := "2379"
	if u.Kind == Redis {
		port = "6379"
	}
	for h := range strings.SplitSeq(text, ",") {
		host, err := withPort(h, port)
		if err != nil {
			return err
		}
		if slices.Contains(u.Hosts, host) {
			return fmt.Errorf("the coordinator %s is named twice", host)
		}
		u.Hosts = append(u.Hosts, host)
	}
	switch n := len(u.Hosts); {
	case n > maxHosts:
		return fmt.Errorf("%d addresses of a coordinator, the most is %d", n, maxHosts)
	case n > 1 && u.Kind == Redis:
		return errors.New("redis:// and valkey:// have one address, that of the primary: a name that follows it when it fails over")
	}
	return nil
}

// withPort adds the port to a host that has none.
func withPort(text, port string) (string, error) {
	host := text
	if h, p, err := net.SplitHostPort(text); err == nil {
		host, port = h, p
	} else if inner, ok := strings.CutPrefix(text, "["); ok {
		host = strings.TrimSuffix(inner, "]")
	} else if strings.Contains(text, ":") {
		host = "" // an IPv6 address without brackets
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || host == "" || strings.ContainsAny(host, "[]%") || strings.Contains(host, ":") && net.ParseIP(host) == nil {
		return "", fmt.Errorf("%.80q is no HOST:PORT of a coordinator", text)
	}
	return net.JoinHostPort(host, port), nil
}

func (u *URL) setPath(path string) error {
	path = strings.TrimSuffix(path, "/")
	if path == "" {
		return nil
	}
	if u.Kind == Redis {
		if n, err := strconv.ParseUint(path, 10, 16); err == nil {
			u.Database = int(n)
			return nil
		}
		return fmt.Errorf("%.40q behind the address of redis:// or valkey:// is no number of a database", path)
	}
	return fmt.Errorf("%.40q behind the address of the coordinator has no meaning: the record is named by the cluster's name", path)
}

func (u *URL) setQuery(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("the settings behind ? in the URL of the coordinator are not NAME=VALUE&…")
	}
	tls := map[string]*string{"ca": &u.CA, "cert": &u.Cert, "key": &u.Key, "server-name": &u.ServerName}
	for name, v := range values {
		to := tls[name]
		switch {
		case name == "password-file" && u.Kind != Kubernetes:
			to = &u.PasswordFile
		case to == nil || u.Kind == Kubernetes:
			return fmt.Errorf("the URL of the coordinator has no setting %.40q", name)
		case !u.TLS:
			return fmt.Errorf("%s in the URL of the coordinator is for TLS: write %ss://", name, u.Scheme)
		}
		if len(v) != 1 || v[0] == "" {
			return fmt.Errorf("%s in the URL of the coordinator is to be named once, with a value", name)
		}
		*to = v[0]
	}
	switch {
	case (u.Cert == "") != (u.Key == ""):
		return errors.New("cert and key in the URL of the coordinator go together")
	case u.Password != "" && u.PasswordFile != "":
		return errors.New("the URL of the coordinator has both a password and a password-file")
	case u.Kind == Etcd && (u.User == "") != (u.Password == "" && u.PasswordFile == ""):
		return errors.New("user and password of etcd go together")
	}
	return nil
}

// String is the URL without user, password and settings.
func (u URL) String() string {
	s := u.Scheme + "://" + strings.Join(u.Hosts, ",") + u.Namespace
	if u.Kind == Redis && u.Database != 0 {
		s += "/" + strconv.Itoa(u.Database)
	}
	return s
}

// Credentials returns user and password, reading the file if there is one.
func (u URL) Credentials() (user, password string, err error) {
	if u.PasswordFile == "" {
		return u.User, u.Password, nil
	}
	b, err := readFile(u.PasswordFile)
	if err != nil {
		return "", "", fmt.Errorf("%w: cannot read the password of the coordinator: %w", ErrRefused, err)
	}
	return u.User, strings.TrimRight(string(b), "\r\n"), nil
}

// TLSConfig returns how to speak TLS to the coordinator, nil without TLS. The files are
// read now; who makes a new connection calls it again, so that renewed files count.
func (u URL) TLSConfig() (*tls.Config, error) {
	if !u.TLS {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: u.ServerName}
	if u.CA != "" {
		pem, err := readFile(u.CA)
		if err != nil {
			return nil, fmt.Errorf("%w: cannot read the authorities for the coordinator: %w", ErrRefused, err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: %s has no certificate of an authority", ErrRefused, u.CA)
		}
	}
	if u.Cert != "" {
		pair, err := tls.LoadX509KeyPair(u.Cert, u.Key)
		if err != nil {
			return nil, fmt.Errorf("%w: cannot use the certificate for the coordinator: %w", ErrRefused, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// maxFile bounds a file with a password or certificates, in bytes.
const maxFile = 1 << 20

func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, fmt.Errorf("%s is no file of at most %d bytes", name, maxFile)
	}
	return os.ReadFile(name)
}

// IsTLSRefusal says whether a handshake failed because one side does not accept the other,
// which more tries do not mend. Libraries return such errors as text.
func IsTLSRefusal(err error) bool {
	text := err.Error()
	for _, part := range []string{"x509: ", "tls: failed to verify", "remote error: tls:", "first record does not look like a TLS handshake"} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}
