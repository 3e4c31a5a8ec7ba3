// The compiled part of both libraries, so that every other file reads their declarations only.
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
