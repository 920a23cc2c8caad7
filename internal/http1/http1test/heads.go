// Package http1test has the requests that the tests of both HTTP servers send: that of
// package http1 and that of package nethttp.
package http1test

import "strings"

// Head is the head of a request, and the status of its answer.
type Head struct {
	Name string
	// Line is the request line, Lines what follows it up to the empty line.
	Line, Lines string
	// Status is 200 where the request reaches the handler.
	Status int
	// Net is the status with net/http where that is another, else zero.
	Net int
}

// Text is the whole request. A body of chunks has its end.
func (h Head) Text() string {
	body := ""
	if strings.Contains(strings.ToLower(h.Lines), "transfer-encoding: chunked\r\n") {
		body = "0\r\n\r\n"
	}
	return h.Line + "\r\n" + h.Lines + "\r\n" + body
}

// Heads are heads of all kinds. maxLines is the most lines that one may have.
func Heads(maxLines int) []Head {
	const line, host = "POST / HTTP/1.1", "Host: h\r\n"
	many := func(n int) string { return strings.Repeat("A: b\r\n", n) }
	return []Head{
		{"plain", line, host, 200, 0},
		{"no headers in 1.0", "GET / HTTP/1.0", "", 200, 0},
		{"value without spaces, tabs, nothing", line, host + "A:b\r\nB: \t b \t\r\nC:\r\nD: \r\n", 200, 0},
		{"bytes beyond ASCII in a value", line, host + "A: \xff\xc3\xbc\r\n", 200, 0},
		{"lines with a bare LF", line, "Host: h\nA: b\n", 200, 0},
		{"unknown method", "BREW / HTTP/1.1", host, 200, 0},
		{"method with all signs", "!#$%&'*+-.^_`|~a0 / HTTP/1.1", host, 200, 0},

		// request line
		{"empty method", " / HTTP/1.1", host, 400, 0},
		{"method with a bracket", "GE(T / HTTP/1.1", host, 400, 0},
		{"no version", "GET /", host, 400, 0},
		{"two spaces", "GET  / HTTP/1.1", host, 400, 0},
		{"two spaces before the version", "GET /  HTTP/1.1", host, 400, 0},
		{"space behind", "GET / HTTP/1.1 ", host, 400, 0},
		{"tabs", "GET\t/\tHTTP/1.1", host, 400, 0},
		{"bare CR", "GET /\rHTTP/1.1", host, 400, 0},
		{"CR CR LF", "GET / HTTP/1.1\r", host, 400, 0},
		{"NUL", "GET /\x00 HTTP/1.1", host, 400, 0},
		{"words in the target", "GET /a b HTTP/1.1", host, 400, 0},
		{"lower case", "GET / http/1.1", host, 400, 0},
		{"no digits", "GET / HTTP/one", host, 400, 0},
		{"more digits", "GET / HTTP/1.10", host, 400, 0},
		{"0.9", "GET / HTTP/0.9", host, 505, 0},
		{"1.2", "GET / HTTP/1.2", host, 200, 0},
		{"1.2 without a host", "GET / HTTP/1.2", "", 400, 0},
		{"2.0", "PRI * HTTP/2.0", "", 505, 0},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "", 400, 0},

		// target
		{"empty target", "GET  HTTP/1.1", host, 400, 0},
		{"no slash", "GET a HTTP/1.1", host, 400, 0},
		{"query alone", "GET ?a HTTP/1.1", host, 400, 0},
		{"query of all kinds", "GET /?a=b&c=%zz'()*?? HTTP/1.1", host, 200, 0},
		{"two slashes", "GET //a/b HTTP/1.1", host, 200, 0},
		{"dots", "GET /../a HTTP/1.1", host, 200, 0},
		{"escape", "GET /%41 HTTP/1.1", host, 200, 0},
		{"broken escape", "GET /%4 HTTP/1.1", host, 400, 0},
		{"fragment", "GET /a#b HTTP/1.1", host, 400, 0},
		{"fragment in the query", "GET /?a#b HTTP/1.1", host, 400, 0},
		{"bytes beyond ASCII", "GET /\xc3\xbc HTTP/1.1", host, 400, 0},
		{"absolute", "GET http://a/b HTTP/1.1", host, 200, 0},
		{"absolute, https and a port", "GET HTTPS://a:1/b?c HTTP/1.1", host, 200, 0},
		{"absolute, no path", "GET http://a HTTP/1.1", host, 200, 0},
		{"absolute, no Host", "GET http://a/ HTTP/1.1", "", 400, 0},
		{"absolute, nobody", "GET http:///b HTTP/1.1", host, 400, 0},
		{"absolute, a user", "GET http://u@a/b HTTP/1.1", host, 400, 0},
		{"absolute, a host of other bytes", "GET http://%c3%bc/ HTTP/1.1", host, 400, 0},
		{"absolute, another scheme", "GET ftp://a/b HTTP/1.1", host, 400, 0},
		{"opaque", "GET a:b HTTP/1.1", host, 400, 0},
		{"asterisk", "OPTIONS * HTTP/1.1", host, 200, 0},
		{"asterisk of another method", "GET * HTTP/1.1", host, 400, 0},
		{"authority", "CONNECT a:1 HTTP/1.1", host, 400, 0},
		{"CONNECT with a path", "CONNECT / HTTP/1.1", host, 400, 0},
		{"authority of another method", "GET a:1 HTTP/1.1", host, 400, 0},

		// lines
		{"space before the colon", line, host + "A : b\r\n", 400, 0},
		{"tab before the colon", line, host + "A\t: b\r\n", 400, 0},
		{"space before the first name", line, " " + host, 400, 0},
		{"folded", line, host + "A: b\r\n c\r\n", 400, 200},
		{"folded by a tab", line, host + "A: b\r\n\tc\r\n", 400, 200},
		{"line of a space", line, host + " \r\n", 400, 0},
		{"no colon", line, host + "A\r\n", 400, 0},
		{"no name", line, host + ": b\r\n", 400, 0},
		{"name with a bracket", line, host + "A(b): c\r\n", 400, 0},
		{"name beyond ASCII", line, host + "\xc3\xbc: c\r\n", 400, 0},
		{"NUL in a value", line, host + "A: b\x00c\r\n", 400, 0},
		{"NUL in a name", line, host + "A\x00: c\r\n", 400, 0},
		{"bare CR in a value", line, host + "A: b\rC: d\r\n", 400, 0},
		{"CR CR LF behind a value", line, host + "A: b\r\r\n", 400, 0},
		{"line of a CR", line, host + "\r\r\n", 400, 0},
		{"DEL", line, host + "A: \x7f\r\n", 400, 0},
		{"vertical tab", line, host + "A: \x0b\r\n", 400, 0},
		{"as many lines as may be", line, host + many(maxLines-1), 200, 0},
		{"too many lines", line, host + many(maxLines), 431, 200},
		{"too large", line, host + "A: " + strings.Repeat("b", 64<<10) + "\r\n", 431, 0},

		// Host
		{"no Host", line, "", 400, 0},
		{"no Host in 1.0", "POST / HTTP/1.0", "", 200, 0},
		{"empty Host", line, "Host:\r\n", 200, 0},
		{"two Hosts", line, host + host, 400, 0},
		{"two Hosts in 1.0", "POST / HTTP/1.0", host + host, 400, 0},
		{"Host with a path", line, "Host: h/a\r\n", 400, 0},
		{"Host with a user", line, "Host: u@h\r\n", 400, 0},
		{"Host beyond ASCII", line, "Host: \xc3\xbc\r\n", 400, 0},
		{"Host of two words", line, "Host: h h\r\n", 400, 0},
		{"Host in brackets", line, "Host: [::1]:80\r\n", 200, 0},
		{"Host in capitals", line, "HOST: h\r\n", 200, 0},

		// Content-Length
		{"length", line, host + "Content-Length: 0\r\n", 200, 0},
		{"length with zeros", line, host + "Content-Length: 00\r\n", 200, 0},
		{"the same twice", line, host + "Content-Length: 0\r\nContent-Length: 0\r\n", 200, 0},
		{"two lengths", line, host + "Content-Length: 0\r\nContent-Length: 1\r\n", 400, 0},
		{"the same in other words", line, host + "Content-Length: 0\r\nContent-Length: 00\r\n", 400, 0},
		{"a list of lengths", line, host + "Content-Length: 0, 0\r\n", 400, 0},
		{"empty length", line, host + "Content-Length:\r\n", 400, 0},
		{"plus", line, host + "Content-Length: +0\r\n", 400, 0},
		{"minus", line, host + "Content-Length: -0\r\n", 400, 0},
		{"hexadecimal", line, host + "Content-Length: 0x0\r\n", 400, 0},
		{"space inside", line, host + "Content-Length: 0 0\r\n", 400, 0},
		{"underscore", line, host + "Content-Length: 0_0\r\n", 400, 0},
		{"more than 63 bits", line, host + "Content-Length: 9223372036854775808\r\n", 400, 0},
		{"more than 64 bits", line, host + "Content-Length: 18446744073709551616\r\n", 400, 0},
		{"length in front of another's", line, host + "Content-Length : 5\r\nContent-Length: 0\r\n", 400, 0},

		// Transfer-Encoding. A body that ends at once is sent behind each head.
		{"chunked", line, host + "Transfer-Encoding: chunked\r\n", 200, 0},
		{"chunked in capitals", line, host + "TRANSFER-ENCODING: CHUNKED\r\n", 200, 0},
		{"Kelvin sign", line, host + "Transfer-Encoding: chun\u212aed\r\n", 501, 0},
		{"chunked twice", line, host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400, 501},
		{"chunked twice in a line", line, host + "Transfer-Encoding: chunked, chunked\r\n", 501, 0},
		{"identity", line, host + "Transfer-Encoding: identity\r\n", 501, 0},
		{"gzip", line, host + "Transfer-Encoding: gzip, chunked\r\n", 501, 0},
		{"gzip in a line of its own", line, host + "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", 501, 0},
		{"empty coding", line, host + "Transfer-Encoding:\r\n", 501, 0},
		{"vertical tab before chunked", line, host + "Transfer-Encoding: \x0bchunked\r\n", 400, 0},
		{"quoted", line, host + "Transfer-Encoding: \"chunked\"\r\n", 501, 0},
		{"coding and length", line, host + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", 400, 200},
		{"length and coding", line, host + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400, 200},
		{"coding in 1.0", "POST / HTTP/1.0", host + "Transfer-Encoding: chunked\r\n", 400, 200},

		// Expect
		{"another expectation", line, host + "Expect: a miracle\r\n", 417, 0},
		{"100-continue, no body", line, host + "Expect: 100-Continue\r\n", 200, 0},
	}
}
