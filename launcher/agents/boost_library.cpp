// What Asio and Beast would otherwise compile into each file that includes them.
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
